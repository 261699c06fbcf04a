"""What every analyzer shares: a request goes in, progress comes out, a report comes last.

An analyzer is a generator. Closing it cancels the work and frees what it held.
"""

import hashlib
import json
import platform
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import BaseModel, ConfigDict, ValidationError

from analyzers.errors import InvalidRequest

if TYPE_CHECKING:
    import pandas


class Data(BaseModel):
    """A frozen piece of plain data. Unknown fields and the numbers JSON cannot hold (NaN, infinities) are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Progress(Data):
    """How far the work is: ``done`` of ``total``, counted in ``unit`` ("bytes", "tensors", "samples")."""

    done: int
    total: int
    unit: str
    note: str = ""


class Request(Data):
    """What is asked. Validates everything: page, command line, API and MCP all pass through it."""


class Environment(Data):
    """Where a report was made. Outside its id, and outside what "the same report" means."""

    python: str
    machine: str
    device: str
    libraries: dict[str, str]


class Timing(Data):
    """How long it took. Outside the report's id, and outside what "the same report" means.

    seconds: all of it; reading_seconds: while weights were read and worked on; bytes_per_second: bytes read in that time.
    """

    seconds: float
    reading_seconds: float
    bytes_per_second: float | None


class Report(Data):
    """What was found. ``id`` is the content address of the resolved request (see `content_id`)."""

    analyzer: str
    schema_version: int
    analysis_version: int
    id: str
    timing: Timing
    environment: Environment

    def tables(self) -> "dict[str, pandas.DataFrame]":
        """The report's tables, by name, for people: one DataFrame each."""
        raise NotImplementedError


class Analyzer(Protocol):
    """The one function an analyzer package exports as ``analyze``. The last item it yields is the report."""

    def __call__(self, request: Any, access: Any = ...) -> Iterator[Progress | Report]: ...


def content_id(analyzer: str, analysis_version: int, resolved: dict[str, Any]) -> str:
    """SHA-256 (hex) of the canonical JSON of analyzer, analysis version and the *resolved* request.

    ``resolved`` names the canonical repository and commit in place of what the user typed, and leaves out every
    option at its default, so that a new option changes no old id.
    """
    content = {"analyzer": analyzer, "analysis_version": analysis_version, "request": resolved}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def request_error(error: ValidationError) -> InvalidRequest:
    """A request model's validation error as one sentence for the user."""
    first = error.errors(include_url=False, include_context=False)[0]
    name = ".".join(str(part) for part in first["loc"])
    said = first["msg"].removeprefix("Value error, ")
    return InvalidRequest(f"{name}: {said}." if name else f"{said[:1].upper()}{said[1:]}.")


def environment(device: str, libraries: tuple[str, ...]) -> Environment:
    """The interpreter, the machine, and the versions of those ``libraries`` that took part: that are loaded."""
    versions = {name: str(sys.modules[name].__version__) for name in libraries if name in sys.modules}
    machine = f"{platform.system()} {platform.machine()}"
    return Environment(python=platform.python_version(), machine=machine, device=device, libraries=versions)
