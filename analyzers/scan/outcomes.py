"""Keeps the outcomes of a scan: JSON lines, one appended as soon as a checkpoint is finished, in one file for each process.

A line is an object with the fields of an `Outcome`, its report and ``"complete": true`` last; ``{"options": {...}}`` holds the options of
the scan. A line that was cut, as when a process is killed, counts as missing.
"""

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from analyzers.core import limits
from analyzers.core.atomic_files import append_line
from analyzers.core.errors import HubError, InvalidRequest, MantissaError, ProcessLost
from analyzers.core.terminal import quoted
from analyzers.core.untrusted_json import InvalidJson, parse_json

FILE = "outcomes.jsonl"
# What stands before and after the report of an outcome: within a text of JSON, the quotes would be escaped.
_REPORT, _COMPLETE = ', "report": ', ', "complete": true}'


@dataclass(frozen=True, slots=True)
class Outcome:
    """The report on one checkpoint, or the reason why there is none.

    key: see `Listed`; error: name of the error class, or ""; message: its sentence; transient: whether another run may succeed; seconds:
    time spent; finished: UTC, ISO; report: JSON without timing and environment, or "".
    """

    key: str
    error: str = ""
    message: str = ""
    transient: bool = False
    seconds: float = field(default=0.0, compare=False)
    finished: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"), compare=False)
    report: str = ""

    @classmethod
    def failed(cls, key: str, error: Exception) -> "Outcome":
        """Make the outcome of an error. Errors of the Hub, lost workers and unexpected errors are transient, all others permanent."""
        if isinstance(error, MantissaError):
            return cls(key, type(error).__name__, str(error), isinstance(error, HubError | ProcessLost))
        return cls(key, "Unexpected", f"Mantissa itself failed on this checkpoint ({type(error).__name__}): please report it.", True)

    def line(self) -> str:
        """Write the outcome as a line."""
        fields = asdict(self)
        report = fields.pop("report") or "null"
        return f"{json.dumps(fields)[:-1]}{_REPORT}{report}{_COMPLETE}"


@dataclass(frozen=True, slots=True)
class Entry:
    """Where the outcome of a checkpoint stands, and the part of it that is held in memory."""

    path: Path
    offset: int
    error: str
    transient: bool


class Outcomes:
    """The outcomes in a folder, without their reports; of several for one checkpoint, the last.

    entries: by key; options: of the scan, None before the first.
    """

    def __init__(self, folder: Path) -> None:
        self.entries: dict[str, Entry] = {}
        self.options: dict[str, Any] | None = None
        with writable(folder):
            for path in sorted(folder.glob("outcomes*.jsonl")):
                self._index(path)

    def _index(self, path: Path) -> None:
        with path.open("rb") as file:
            offset = 0
            while line := file.readline(limits.RESULT_BYTES):  # of one that is too long to be an outcome, pieces
                head, separator, rest = line.partition(_REPORT.encode())
                if not separator or rest.rstrip(b"\n").endswith(_COMPLETE.encode()):
                    with suppress(InvalidJson, KeyError, TypeError):
                        self._take(path, offset, parse_json(head + b"}" if separator else head))
                offset += len(line)

    def _take(self, path: Path, offset: int, stated: Any) -> None:
        if "key" in stated:
            self.entries[str(stated["key"])] = Entry(path, offset, str(stated["error"]), bool(stated["transient"]))
        else:
            self.options = dict(stated["options"])

    def read(self, key: str) -> tuple[Outcome, Any]:
        """Return the outcome of a checkpoint that has one, and its report as parsed JSON. Raises InvalidRequest if it is damaged."""
        entry = self.entries[key]
        with entry.path.open("rb") as file:
            file.seek(entry.offset)
            line = file.readline(limits.RESULT_BYTES)
        try:
            stated = parse_json(line)
            del stated["complete"]
            report = stated.pop("report")
            text = "" if report is None else json.dumps(report, ensure_ascii=False, separators=(",", ":"))
            return Outcome(**stated, report=text), report
        except (InvalidJson, KeyError, TypeError):
            raise InvalidRequest(f"The line of {quoted(key)} in {entry.path.name} is damaged: delete it and scan again.") from None


@contextmanager
def appending(folder: Path, name: str = FILE) -> Iterator[Callable[[str], None]]:
    """Open a file of outcomes, which only one process has open, and yield the function that appends a line durably.

    Raises InvalidRequest if another scan has it open, or if it cannot be written.
    """
    path = folder / name
    with writable(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            raise InvalidRequest(f"{name} in the folder of the scan is not a regular file: choose another folder.")
        file = path.open("ab")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidRequest("Another scan is writing into this folder: wait for it, or choose another one.") from None

        def append(line: str) -> None:
            with writable(folder):
                append_line(path, line)

        yield append


@contextmanager
def writable(folder: Path) -> Iterator[None]:
    """Translate errors of the file system in the folder of a scan into InvalidRequest."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else "the system refuses it"
        raise InvalidRequest(
            f"The folder {str(folder)[:200]} cannot be written to ({reason}): fix that and run the same command again, or choose another "
            "one with --out."
        ) from None
