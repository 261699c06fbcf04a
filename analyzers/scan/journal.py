"""Keeps the journal of a scan: one SQLite file with the outcome of each checkpoint, committed to disk as soon as it is finished."""

import errno
import hashlib
import os
import sqlite3
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from analyzers.core.errors import HubError, InvalidRequest, MantissaError, ProcessLost

_SCHEMA = """
CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS outcomes (
    key TEXT PRIMARY KEY, report BLOB NOT NULL, error TEXT NOT NULL, message TEXT NOT NULL, transient INTEGER NOT NULL,
    digest TEXT NOT NULL, finished TEXT NOT NULL, seconds REAL NOT NULL, worker TEXT NOT NULL
);
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The report on one checkpoint, or the reason why there is none.

    key: see `Listed`; report: JSON without timing and environment, or ""; error: name of the error class, or ""; message: its sentence;
    transient: whether another run may succeed; seconds: time spent.
    """

    key: str
    report: str = ""
    error: str = ""
    message: str = ""
    transient: bool = False
    seconds: float = field(default=0.0, compare=False)

    @classmethod
    def failed(cls, key: str, error: Exception) -> "Outcome":
        """Make the outcome of an error. Errors of the Hub, lost workers and unexpected errors are transient, all others permanent."""
        if isinstance(error, MantissaError):
            return cls(key, "", type(error).__name__, str(error), isinstance(error, HubError | ProcessLost))
        return cls(key, "", "Unexpected", f"Mantissa itself failed on this checkpoint ({type(error).__name__}): please report it.", True)

    @property
    def digest(self) -> str:
        """SHA-256 of all fields except ``seconds``."""
        return hashlib.sha256("\0".join((self.key, self.report, self.error, self.message, str(self.transient))).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Entry:
    """The part of an outcome that the journal keeps in memory."""

    digest: str
    error: str
    transient: bool


class Journal:
    """An open journal, locked against other scans until it is closed. Use it from one thread.

    Raises InvalidRequest if another scan has it open, if it is damaged, or if it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._folder = path.parent
        with writable(self._folder):  # reports the system's reason if the file cannot be written, which SQLite does not
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
            regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
            os.close(descriptor)
        if not regular:
            raise InvalidRequest(f"{path.name} in the folder of the scan is not a regular file: choose another folder.")
        self._connection = sqlite3.connect(path, timeout=0, isolation_level=None)
        self.entries: dict[str, Entry] = {}
        try:
            with writable(self._folder):
                # Write-ahead logging needs shared memory, which network file systems lack.
                for pragma in ("locking_mode=EXCLUSIVE", "journal_mode=DELETE", "synchronous=FULL"):
                    self._connection.execute(f"PRAGMA {pragma}")
                self._connection.executescript(f"BEGIN EXCLUSIVE; {_SCHEMA} COMMIT;")
                for key, digest, error, transient in self._connection.execute("SELECT key, digest, error, transient FROM outcomes"):
                    self.entries[key] = Entry(digest, error, bool(transient))
        except BaseException:
            self._connection.close()
            raise

    def append(self, outcome: Outcome, worker: str = "") -> None:
        """Commit an outcome, replacing an earlier one of the same checkpoint. worker: where it was computed."""
        self._write(outcome, datetime.now(UTC).isoformat(timespec="seconds"), round(outcome.seconds, 3), worker)

    def absorb(self, path: Path) -> None:
        """Move the outcomes of another journal into this one and delete it."""
        with Journal(path) as other:
            for key, *rest in other._connection.execute("SELECT key, finished, seconds, worker FROM outcomes"):
                self._write(other.read(key), *rest)
        path.unlink()

    def _write(self, outcome: Outcome, finished: str, seconds: float, worker: str) -> None:
        report = zlib.compress(outcome.report.encode())
        row = (outcome.key, report, outcome.error, outcome.message, outcome.transient, outcome.digest, finished, seconds, worker)
        with writable(self._folder):
            self._connection.execute("INSERT OR REPLACE INTO outcomes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        self.entries[outcome.key] = Entry(outcome.digest, outcome.error, outcome.transient)

    def read(self, key: str) -> Outcome:
        """Return the outcome of a checkpoint that has one. Raises InvalidRequest if it is damaged."""
        query = "SELECT report, error, message, transient FROM outcomes WHERE key = ?"
        with writable(self._folder):
            report, error, message, transient = self._connection.execute(query, (key,)).fetchone()
            return Outcome(key, zlib.decompress(report).decode(), error, message, bool(transient))

    def dated(self, key: str, longest: int) -> tuple[bytes, str, float]:
        """Return the report of a checkpoint, when it was finished (UTC, ISO), and in how many seconds, from an untrusted journal.

        longest: most bytes of the report; the rest is not read. Raises InvalidRequest if the entry is damaged.
        """
        query = "SELECT report, finished, seconds FROM outcomes WHERE key = ?"
        try:
            report, finished, seconds = self._connection.execute(query, (key,)).fetchone()
            return zlib.decompressobj().decompress(report, longest), finished, seconds
        except (sqlite3.Error, zlib.error, TypeError):
            raise InvalidRequest("Its entry in the journal is damaged.") from None

    def setting(self, name: str) -> str | None:
        """Return a value stored by `set`; None if there is none."""
        with writable(self._folder):
            row = self._connection.execute("SELECT value FROM settings WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def set(self, name: str, value: str) -> None:
        """Store a value durably."""
        with writable(self._folder):
            self._connection.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (name, value))

    def close(self) -> None:
        """Release the lock. Idempotent."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


@contextmanager
def writable(folder: Path) -> Iterator[None]:
    """Context manager that translates errors of the file system and of SQLite, in the folder of a scan, into InvalidRequest."""
    try:
        yield
    except OSError as error:
        number = error.errno
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            raise InvalidRequest("Another scan is writing into this folder: wait for it, or choose another one.") from None
        number = errno.ENOSPC if "full" in str(error) else errno.EROFS if "readonly" in str(error) else errno.EIO
    except (sqlite3.DatabaseError, zlib.error, UnicodeDecodeError):
        raise InvalidRequest("The journal of the scan, scan.sqlite, is damaged: choose another folder.") from None
    else:
        return
    raise InvalidRequest(
        f"The folder {str(folder)[:200]} cannot be written to ({os.strerror(number or errno.EIO)}): fix that and run the same command "
        "again, or choose another one with --out."
    )
