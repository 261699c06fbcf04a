"""The journal of a scan: what came of each checkpoint, appended as it is finished, one checksummed line each.

A line is ``CRC32 HEAD BODY``: head is JSON (key, error, whether it may pass), body the outcome's JSON, compressed. It is on
the disk (fsync) before its checkpoint counts as done. A process killed while it writes leaves a torn last line, which
is cut off when the journal is opened again; the checkpoint it was about is then done again.
"""

import base64
import errno
import fcntl
import json
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from analyzers.errors import InvalidRequest
from analyzers.scan.outcome import Outcome

_CRC_DIGITS = 8


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a line stands, its checksum, and what its head says."""

    offset: int
    length: int
    checksum: str
    error: str
    passing: bool


class Journal:
    """An open journal, locked against other scans. Of several lines about one checkpoint the last counts.

    Raises InvalidRequest where another process has it open; OSError as the system does.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.entries: dict[str, Entry] = {}
        try:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InvalidRequest("Another scan is writing into this folder: wait for it, or choose another one.") from None
            except OSError as error:
                if error.errno not in (errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS):  # some network file systems know no locks
                    raise
            self._end = self._load(path)
            if self._end < os.fstat(self._file).st_size:
                os.ftruncate(self._file, self._end)
        except BaseException:
            os.close(self._file)
            raise

    def _load(self, path: Path) -> int:
        """Read every line; returns where the last whole one ends."""
        at = end = 0
        with path.open("rb") as lines:
            for line in lines:
                entry = _entry(line, at)
                at += len(line)
                if entry is not None:
                    key, found = entry
                    self.entries[key] = found
                    end = at
        return end

    def append(self, outcome: Outcome) -> None:
        """Write one outcome through to the disk."""
        head = json.dumps({"key": outcome.key, "error": outcome.error, "passing": outcome.passing})
        body = base64.b64encode(zlib.compress(outcome.to_json().encode())).decode()
        content = f"{head} {body}".encode()
        checksum = _checksum(content)
        line = checksum + b" " + content + b"\n"
        written = 0
        while written < len(line):
            written += os.pwrite(self._file, line[written:], self._end + written)
        os.fsync(self._file)
        self.entries[outcome.key] = Entry(self._end, len(line), checksum.decode(), outcome.error, outcome.passing)
        self._end += len(line)

    def read(self, key: str) -> Outcome:
        """What came of a checkpoint that is among ``entries``."""
        entry = self.entries[key]
        line = os.pread(self._file, entry.length, entry.offset)
        return Outcome.from_json(zlib.decompress(base64.b64decode(line.rpartition(b" ")[2])))

    def close(self) -> None:
        """Close and unlock."""
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _checksum(content: bytes) -> bytes:
    return f"{zlib.crc32(content):0{_CRC_DIGITS}x}".encode()


def _entry(line: bytes, at: int) -> tuple[str, Entry] | None:
    """Key and entry of a line at offset ``at``; None for one that is torn or damaged."""
    checksum, content = line[:_CRC_DIGITS], line[_CRC_DIGITS + 1 : -1]
    if not line.endswith(b"\n") or _checksum(content) != checksum:
        return None
    try:
        head = json.loads(content.rpartition(b" ")[0])
        return head["key"], Entry(at, len(line), checksum.decode(), head["error"], head["passing"])
    except (ValueError, KeyError, TypeError):  # a checksum that fits what is no line of ours
        return None
