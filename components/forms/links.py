"""The state shared by all forms over weights, as form fields, as a link and as a command.

A query string is as untrusted as a form: it only fills in the form's fields, and the request validates them.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar
from urllib.parse import urlencode

from pydantic import ValidationError

from analyzers import limits
from analyzers.base import CheckpointFacts, Request, WeightsRequest, request_error
from analyzers.errors import InvalidRequest
from analyzers.formatting import parse_bytes

SHOWN = 60
Query = Sequence[tuple[str, str]]
_Request = TypeVar("_Request", bound=Request)


@dataclass(frozen=True, slots=True)
class Reading:
    """How many weights to read and which, as typed. An empty field means the default."""

    mode: str = "quick"
    budget: str = ""
    include: str = ""
    exclude: str = ""
    subfolder: str = ""
    seed: str = "0"

    def fields(self) -> dict[str, Any]:
        """The fields for a `WeightsRequest`. Raises InvalidRequest if the budget or the seed is not a number."""
        return {
            "mode": self.mode,
            "budget": parse_bytes(self.budget) if self.budget.strip() and self.mode != "exact" else limits.DEFAULT_BUDGET_BYTES,
            "include": self.include or None,
            "exclude": self.exclude or None,
            "subfolder": self.subfolder.strip() or None,
            "seed": _whole(self.seed),
        }


def reading(query: Query) -> Reading:
    """Parse the reading options of a query: the last value of each key, truncated to the field's limit. Unknown keys are ignored."""
    known = asdict(Reading())
    return Reading(**{key: text[: limits.FILTER_LENGTH + 1] for key, text in query if key in known})


def revised(query: Query) -> Query:
    """Merge ``revision`` into ``model`` as ``org/name@revision`` if the query has exactly one of each."""
    revision = dict(query).get("revision", "")[: limits.REFERENCE_LENGTH]
    models = [text for key, text in query if key == "model"]
    if not revision or len(models) != 1 or not models[0] or "@" in models[0]:
        return query
    return [(key, f"{text}@{revision}" if key == "model" else text) for key, text in query if key != "revision"]


def references(text: str, most: int) -> list[str]:
    """Split ``text`` at commas, semicolons and whitespace. Raises InvalidRequest if it is longer than ``most`` references."""
    if len(text) > most * (limits.REFERENCE_LENGTH + 2):
        raise InvalidRequest(f"{len(text):,} characters are more than {most} model ids have: paste the ids only.")
    return re.findall(r"[^\s,;]+", text)


def validated(kind: type[_Request], **fields: Any) -> _Request:
    """The validated request. Raises InvalidRequest with the sentence to show."""
    try:
        return kind(**fields)
    except ValidationError as error:
        said = str(request_error(error))
        raise InvalidRequest(said[:1].upper() + said[1:]) from None


def link(keys: Query, request: WeightsRequest) -> str:
    """A query of ``keys`` and the options of ``request`` that differ from the defaults; opening it gives the same request."""
    fields: list[tuple[str, str]] = [*keys, ("mode", request.mode)]
    if request.budget != limits.DEFAULT_BUDGET_BYTES:
        fields.append(("budget", str(request.budget)))
    fields += [(key, text) for key in ("include", "exclude", "subfolder") if (text := getattr(request, key))]
    if request.seed:
        fields.append(("seed", str(request.seed)))
    return "?" + urlencode(fields)


def command_line(words: Sequence[str], request: WeightsRequest) -> str:
    """A shell command: ``python -m analyzers``, ``words``, and the options of ``request`` that differ from the defaults."""
    line = ["python", "-m", "analyzers", *words]
    if request.mode == "exact":
        line.append("--exact")
    elif request.budget != limits.DEFAULT_BUDGET_BYTES:
        line += ["--budget", str(request.budget)]
    # "--include=..." also works for a filter that begins with a dash
    line += [f"--{key}={text}" for key in ("include", "exclude", "subfolder") if (text := getattr(request, key))]
    if request.seed:
        line += ["--seed", str(request.seed)]
    return shlex.join(line)


def pinned(checkpoint: CheckpointFacts) -> str:
    """The reference with its commit; samples have none."""
    return checkpoint.ref if checkpoint.ref.startswith("sample:") else f"{checkpoint.ref}@{checkpoint.commit}"


def _whole(text: str) -> int:
    """Parse a seed. Raises InvalidRequest."""
    plain = text.strip() or "0"
    if not (plain.removeprefix("-").isascii() and plain.removeprefix("-").isdigit() and len(plain) <= 20):
        raise InvalidRequest(f"{text[:SHOWN]!r} is not a seed: write a whole number from 0 up.")
    return int(plain)
