"""Opens the library's SQLite file for many processes at once, durably: an acknowledged write survives a kill or a power cut."""

import errno
import fcntl
import os
import sqlite3
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from analyzers.core.errors import LibraryUnavailable
from components.library import same_shapes, savings

_BUSY_SECONDS = 30  # Longest wait for another process that writes to the same library.
FILE = "library.sqlite3"
BACKUPS = "backups"
_LOCK = f"{FILE}-lock"
_SCHEMA_VERSION = 3
# WAL keeps its index in shared memory, which works on local file systems only; others use a rollback journal.
_LOCAL_MOUNTS = frozenset(
    [
        *("apfs", "bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "hfs", "jfs", "ntfs", "ntfs3"),
        *("overlay", "ramfs", "tmpfs", "ufs", "xfs", "zfs"),
    ]
)
_RETRY_SECONDS = 0.02
READ_ONLY = "The library is read-only here, because its folder or file cannot be written: it is shown, and nothing can be added."
DAMAGED = (
    "The library's file is damaged: stop the app, and run mantissa library restore, which brings back the newest backup and the rows that "
    "SQLite still reaches in the file."
)
FULL = "The library's disk is full: free some space, or set MANTISSA_DATA to another folder."
_BUSY = "The library is busy: another process has locked its file. Try again in a moment."
_REPLACED = "The library's file was deleted or replaced while this app ran: nothing is read or added until the app is restarted."

_SCHEMA = Path(__file__).with_name("schema.sql")
# One index per sort order of a list: a page is found without reading the rows, which are wide.
ORDERS: dict[str, tuple[str, ...]] = {
    "labels": ("created", "model", "precision", "contributor", "flags"),
    "results": ("created", "model", "analyzer", "storage", "passed_through", "trained_in", "fp16_risk", "size"),
    "models": (
        *("model", "storage", "passed_through", "trained_in", "fp16_risk"),
        *("precision", "contributors", "labels", "results", "updated", "wasted"),
    ),
}
# Orders of names, in which upper and lower case sort as one.
COLLATED = {"model": "model COLLATE NOCASE", "contributor": "contributor COLLATE NOCASE"}
_INDICES = [
    f"CREATE INDEX IF NOT EXISTS {table}_by_{order}{'_in_any_case' if order in COLLATED else ''} "
    f"ON {table} ({COLLATED.get(order, order)}, number{', current' if table == 'labels' else ''})"
    for table, orders in ORDERS.items()
    for order in orders
]


class Database:
    """The library's file in ``folder``, created if necessary. Safe to use from several threads and processes; not across a fork.

    read_only: the file exists and may not be written. damaged: a request found damage in it. full: the disk was full at the last write.
    Methods raise LibraryUnavailable if the disk or the file cannot be used.
    """

    def __init__(self, folder: Path) -> None:
        self._idle: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        self._closed = False
        self._opened: list[tuple[int, int] | None] = []
        self._path = folder / FILE
        self._held: int | None = None
        self.damaged = self.full = False
        with advice():
            self.read_only = self._path.is_file() and not all(os.access(path, os.W_OK) for path in (folder, self._path))
            if not self.read_only:
                folder.mkdir(parents=True, exist_ok=True)
                self._held = hold(folder, "The library is being restored by another process: start again when that has ended.")
            self.journal = journal_mode(folder)
        try:
            if not self.read_only:
                self._create_tables()
            with self.read() as connection:
                (version,) = connection.execute("PRAGMA user_version").fetchone()
        except BaseException:
            self.close()
            raise
        if version != _SCHEMA_VERSION:
            self.close()
            raise LibraryUnavailable(
                "The library was written by a later version of Mantissa: update Mantissa, or set MANTISSA_DATA to another folder."
                if version > _SCHEMA_VERSION
                else "The library was written by an earlier version of Mantissa and cannot be shown: it must be updated first, and its "
                "folder or file cannot be written. Make them writable, or set MANTISSA_DATA to another folder."
            )
        self._opened = self._on_disk()

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """Open a connection for queries that all see the same state."""
        with self._noted(), self._connection() as connection:
            connection.execute("BEGIN")
            with connection:
                yield connection

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """Open a connection in a transaction that holds the write lock from the start; it is committed on return, undone on an error."""
        if self.read_only:
            raise LibraryUnavailable(READ_ONLY)
        with self._noted(), self._connection() as connection:
            before = connection.total_changes
            connection.execute("BEGIN IMMEDIATE")
            with connection:
                yield connection
            self._check_files()
            self.full &= connection.total_changes == before

    @contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            with advice():
                yield
        except LibraryUnavailable as error:
            self.damaged |= str(error) == DAMAGED
            self.full |= str(error) == FULL
            raise

    def size(self) -> int:
        """Return the size of the file in bytes."""
        with advice():
            return self._path.stat().st_size

    def copy(self, path: Path, pages: int, check: Callable[[], None]) -> None:
        """Copy the file to ``path`` as of one moment, calling ``check``, which may raise, after every ``pages`` pages."""
        with self.read() as connection, closing(sqlite3.connect(path)) as copy:
            connection.execute("SELECT 1 FROM meta LIMIT 1").fetchone()  # the first read fixes the state that this connection sees
            connection.backup(copy, pages=pages, progress=lambda status, remaining, total: check())
            copy.execute("PRAGMA journal_mode = DELETE")  # the copy must be a single file, without a log

    def version(self) -> str:
        """Return a text that changes whenever something is added or results are withdrawn."""
        with self.read() as connection:
            row = connection.execute(
                "SELECT (SELECT MAX(number) FROM labels), (SELECT MAX(rowid) FROM flags), (SELECT MAX(number) FROM results), "
                "(SELECT COUNT(*) FROM results)"
            ).fetchone()
        return ".".join(str(number or 0) for number in row)

    def _create_tables(self) -> None:
        """Create the tables, or update tables of an earlier version."""
        with self.write() as connection:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version == 0:
                for statement in _statements():
                    connection.execute(statement)
                if any((self._path.parent / BACKUPS).glob("library-*.sqlite3")):  # an earlier library was lost, see `Backups`
                    connection.execute("INSERT INTO meta VALUES ('lost', '')")
            if version in (1, 2):
                _add_facts(connection)
                for old in ("TABLE IF EXISTS models", "INDEX IF EXISTS labels_by_model", "INDEX IF EXISTS results_by_model"):
                    connection.execute(f"DROP {old}")
                for statement in _statements():  # `Library.open` fills the table again
                    if " models" in statement:
                        connection.execute(statement)
            for statement in _INDICES if version <= _SCHEMA_VERSION else ():
                connection.execute(statement)
            if version < _SCHEMA_VERSION:
                connection.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")

    def close(self) -> None:
        """Close the file. Idempotent."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            held, self._held = self._held, None
        for connection in idle:
            connection.close()
        if held is not None:
            os.close(held)

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            if self._closed:
                raise LibraryUnavailable("The library is closed.")
            self._check_files()
            connection = self._idle.pop() if self._idle else None
        connection = connection or (self._connect_read_only() if self.read_only else self._connect())
        try:
            yield connection
        finally:
            with self._lock:
                closed = self._closed
                if not closed:
                    self._idle.append(connection)
            if closed:
                connection.close()

    def _on_disk(self) -> list[tuple[int, int] | None]:
        """Return device and inode of the file and its write-ahead log, which exists while a connection of this process does."""
        paths = [self._path] if self.read_only else [self._path, self._path.with_name(f"{FILE}-wal")]
        return [(found.st_dev, found.st_ino) if (found := _stat(path)) else None for path in paths]

    def _check_files(self) -> None:
        """Raise LibraryUnavailable if the paths now name other files than were opened: SQLite would continue to write to the old ones."""
        if self._opened and self._on_disk() != self._opened:
            raise LibraryUnavailable(_REPLACED)

    def _connect_read_only(self) -> sqlite3.Connection:
        """Open a read-only connection. Without a log, the file is opened as immutable, because SQLite could not create the log."""
        options = [] if self._path.with_name(f"{FILE}-wal").exists() or not _is_wal(self._path) else ["immutable=1"]
        address = f"{self._path.absolute().as_uri()}?{'&'.join(['mode=ro', *options])}"
        return sqlite3.connect(address, uri=True, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            if not self._opened and self.journal != "WAL" and _is_wal(self._path):
                # The file comes from a local disk: without shared memory, its log can be read only by a connection with exclusive access,
                # which ends with the first transaction. Checked only once: reading the file again would release the locks of other
                # connections.
                connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            _set_journal(connection, self.journal)
            connection.execute("PRAGMA locking_mode = NORMAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("PRAGMA cache_size = -16000")  # negative values are KiB
        except BaseException:
            connection.close()
            raise
        return connection


def insert(connection: sqlite3.Connection, table: str, facts: Mapping[str, Any], published: str) -> int | None:
    """Insert an item, and return its row number; None if one with its id is known, which is marked as published.

    published: the dataset's commit that contains the item, or "".
    """
    columns = {**facts, "published": published}
    row = connection.execute(
        f"INSERT INTO {table} ({', '.join(columns)}) VALUES (:{', :'.join(columns)}) "  # noqa: S608 - our own names
        "ON CONFLICT (id) DO NOTHING RETURNING rowid",
        columns,
    ).fetchone()
    if row is None and published:
        connection.execute(f"UPDATE {table} SET published = ? WHERE id = ? AND published = ''", (published, facts["id"]))  # noqa: S608
    return None if row is None else int(row[0])


def _add_facts(connection: sqlite3.Connection) -> None:
    """Add the facts that version 3 has of results, for the newest 2,000: about 16 s, while other processes wait."""
    known = {name for _, name, *_ in connection.execute("PRAGMA table_info(results)")}
    for column in ("shapes TEXT NOT NULL DEFAULT ''", "bytes INTEGER", "wasted INTEGER"):
        if column.split()[0] not in known:
            connection.execute(f"ALTER TABLE results ADD COLUMN {column}")
    connection.execute("CREATE INDEX IF NOT EXISTS results_shapes ON results (shapes) WHERE shapes <> ''")
    newest = "SELECT number, overview FROM results WHERE overview OR analyzer = 'check' ORDER BY number DESC LIMIT 2000"
    for number, overview in connection.execute(newest).fetchall():
        (packed,) = connection.execute("SELECT packed FROM reports WHERE number = ?", (number,)).fetchone()
        report = zlib.decompress(packed)
        facts = (same_shapes.fingerprint(report) if overview else "", *savings.savings(report))
        connection.execute("UPDATE results SET shapes = ?, bytes = ?, wasted = ? WHERE number = ?", (*facts, number))


def _statements() -> list[str]:
    return _SCHEMA.read_text(encoding="utf-8").strip().rstrip(";").split(";\n")


def hold(folder: Path, refusal: str, alone: bool = False) -> int | None:
    """Lock the library in ``folder`` until the result is closed, shared or, if ``alone``, exclusively; None on a mount without such locks.

    Uses a separate lock file: SQLite's locks end with any descriptor of its file, and an idle app holds none. Raises LibraryUnavailable
    with the sentence ``refusal`` if others hold it.
    """
    held = os.open(folder / _LOCK, (os.O_RDWR if alone else os.O_RDONLY) | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(held, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        return held
    except OSError as error:
        os.close(held)
        if isinstance(error, BlockingIOError):
            raise LibraryUnavailable(refusal) from None
        return None


def journal_mode(folder: Path) -> str:
    """Return "WAL" if the mount of ``folder`` supports it, else "TRUNCATE" (network mounts, mounts of unknown type)."""
    if sys.platform != "linux":
        return "WAL"
    mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
    return "WAL" if mount_kind(folder, mounts) in _LOCAL_MOUNTS else "TRUNCATE"


def mount_kind(folder: Path, mounts: str) -> str:
    """Return the type of the file system of ``folder``, from the lines of /proc/self/mounts; "" if unknown."""
    place, kind, depth = folder.resolve(), "", -1
    for line in mounts.splitlines():
        words = line.split(" ")
        if len(words) >= 3:
            point = Path(words[1].replace("\\040", " "))
            if (place == point or point in place.parents) and len(point.parts) >= depth:
                kind, depth = words[2], len(point.parts)
    return kind


def _stat(path: Path) -> os.stat_result | None:
    with suppress(FileNotFoundError):
        return path.stat()
    return None


def _is_wal(path: Path) -> bool:
    """Return whether a database file declares a write-ahead log as its journal."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        return file.read(20)[18:] == b"\2\2"
    return False


def _set_journal(connection: sqlite3.Connection, journal: str) -> None:
    """Set the journal mode, which needs the file exclusively for a moment; SQLite does not wait for that by itself."""
    end = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            if connection.execute("PRAGMA journal_mode").fetchone()[0].upper() != journal:
                connection.execute(f"PRAGMA journal_mode = {journal}")  # if the file system refuses WAL, SQLite keeps its mode
            return
        except sqlite3.OperationalError as error:
            if not error.sqlite_errorname.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
                raise
        if time.monotonic() > end:
            raise LibraryUnavailable(_BUSY)
        time.sleep(_RETRY_SECONDS)


@contextmanager
def advice() -> Iterator[None]:
    """Convert errors of SQLite and the disk to LibraryUnavailable, with advice."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise LibraryUnavailable(_sentence(error)) from None


def _sentence(error: sqlite3.Error | OSError) -> str:
    name = getattr(error, "sqlite_errorname", "") or errno.errorcode.get(getattr(error, "errno", 0) or 0, "")
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return _BUSY
    if name.startswith(("SQLITE_FULL", "ENOSPC", "EDQUOT")):
        return FULL
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return DAMAGED
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM", "EACCES", "EPERM", "EROFS", "ENOTDIR", "EEXIST")):
        return "The library's folder cannot be written: set MANTISSA_DATA to another one."
    return f"The library's file cannot be used ({name or type(error).__name__}): check the disk of its folder (MANTISSA_DATA)."
