"""The journal of a scan: one SQLite file with the outcome of each checkpoint, committed to disk as soon as it is finished."""

import errno
import sqlite3
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from analyzers.errors import InvalidRequest
from analyzers.scan.outcome import Outcome

_SCHEMA = """
CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS outcomes (
    key TEXT PRIMARY KEY, report BLOB NOT NULL, error TEXT NOT NULL, message TEXT NOT NULL, transient INTEGER NOT NULL,
    digest TEXT NOT NULL, finished TEXT NOT NULL, seconds REAL NOT NULL, worker TEXT NOT NULL
);
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """What the journal knows of an outcome without reading its report."""

    digest: str
    error: str
    transient: bool


class Journal:
    """An open journal, locked against other scans until it is closed. Use it from one thread.

    Raises InvalidRequest where another scan has it open or it is damaged, OSError where it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        with path.open("ab"):  # says in the system's words why it cannot be written, which SQLite does not
            pass
        self._connection = sqlite3.connect(path, timeout=0, isolation_level=None)
        self.entries: dict[str, Entry] = {}
        try:
            with _advice():
                # Write-ahead logging needs shared memory, which network file systems do not have.
                for pragma in ("locking_mode=EXCLUSIVE", "journal_mode=DELETE", "synchronous=FULL"):
                    self._connection.execute(f"PRAGMA {pragma}")
                self._connection.executescript(f"BEGIN EXCLUSIVE; {_SCHEMA} COMMIT;")
                for key, *entry in self._connection.execute("SELECT key, digest, error, transient FROM outcomes"):
                    self.entries[key] = Entry(entry[0], entry[1], bool(entry[2]))
        except BaseException:
            self._connection.close()
            raise

    def append(self, outcome: Outcome, seconds: float, worker: str) -> None:
        """Commit an outcome; it replaces an earlier one of the same checkpoint. seconds: spent on it; worker: where."""
        self._write(outcome, datetime.now(UTC).isoformat(timespec="seconds"), seconds, worker)

    def absorb(self, path: Path) -> None:
        """Copy the outcomes of another journal into this one and delete it."""
        with Journal(path) as other:
            for key, finished, seconds, worker in other._connection.execute("SELECT key, finished, seconds, worker FROM outcomes"):
                self._write(other.read(key), finished, seconds, worker)
        path.unlink()

    def _write(self, outcome: Outcome, finished: str, seconds: float, worker: str) -> None:
        report = zlib.compress(outcome.report.encode())
        row = (outcome.key, report, outcome.error, outcome.message, outcome.transient, outcome.digest, finished, seconds, worker)
        with _advice():
            self._connection.execute("INSERT OR REPLACE INTO outcomes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        self.entries[outcome.key] = Entry(outcome.digest, outcome.error, outcome.transient)

    def read(self, key: str) -> Outcome:
        """The outcome of a checkpoint that has one. Raises InvalidRequest where it is damaged."""
        query = "SELECT report, error, message, transient FROM outcomes WHERE key = ?"
        with _advice():
            report, error, message, transient = self._connection.execute(query, (key,)).fetchone()
            return Outcome(key, zlib.decompress(report).decode(), error, message, bool(transient))

    def setting(self, name: str) -> str | None:
        """A value that `set` stored."""
        with _advice():
            row = self._connection.execute("SELECT value FROM settings WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def set(self, name: str, value: str) -> None:
        """Store a value durably."""
        with _advice():
            self._connection.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (name, value))

    def close(self) -> None:
        """Release the lock. Idempotent."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class _advice:  # noqa: N801 - used like contextlib.suppress
    """Turns SQLite's errors into ours, or into OSError."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, sqlite3.OperationalError):
            if "locked" in str(error):
                raise InvalidRequest("Another scan is writing into this folder: wait for it, or choose another one.") from None
            raise OSError(*_os_error(error)) from None
        if isinstance(error, sqlite3.DatabaseError | zlib.error | UnicodeDecodeError):
            raise InvalidRequest("The journal of the scan, scan.sqlite, is damaged: choose another folder.") from None


def _os_error(error: sqlite3.OperationalError) -> tuple[int, str]:
    code = errno.ENOSPC if "full" in str(error) else errno.EROFS if "readonly" in str(error) else errno.EIO
    return code, str(error)


def shards(folder: Path) -> Iterator[Path]:
    """The journals that processes of a launch left in ``folder``, in a fixed order."""
    yield from sorted(folder.glob("scan-rank-*.sqlite"))
