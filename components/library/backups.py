"""Makes daily backups of the library's file, in its folder, and restores from a damaged or lost file.

A backup is made with SQLite's backup API and counts only if SQLite finds no damage in it: a damaged file never replaces a good backup.
"""

import logging
import os
import shutil
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from analyzers.core.errors import LibraryUnavailable, MantissaError
from analyzers.core.untrusted_json import parse_model
from components.library import label_rows, result_rows
from components.library.counts import counts
from components.library.database import BACKUPS, DAMAGED, FILE, Database, advice, hold
from components.library.schema import Flag, Label, Result
from components.library.storable_reports import storable_result

LIBRARY_BACKUPS = 3  # Daily backups of the library kept in its folder, the newest.
LOST = (
    "The library's file was missing or empty at a start, and there are backups of it: stop the app, and run mantissa library restore, or "
    f"delete the folder {BACKUPS}. Until then no backup is made."
)
_UNFINISHED = ".unfinished-"
_DAY = 86_400
_FIRST_SECONDS, _EVERY_SECONDS = 60, 3600  # seconds to the first check whether today's backup exists, and between later checks
_PAGES = 4_096  # pages copied between two checks whether to stop
_CHUNK = 500
# Consecutive row numbers without a readable row before giving up: a damaged page of an index names some hundred pages of some ten rows.
_GAP = 20_000
_NEITHER = "There is neither a library nor a backup of one in {} (MANTISSA_DATA)."
_log = logging.getLogger("mantissa")


class Backups:
    """Backs up the library in ``folder`` once a day, and keeps LIBRARY_BACKUPS backups. problem: why today's is missing, or ""."""

    def __init__(self, database: Database, folder: Path) -> None:
        self._database = database
        self._folder = folder / BACKUPS
        self.problem = LOST if self._is_lost() else ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="library-backup", daemon=True)

    def start(self) -> None:
        """Check every hour whether a backup is due, in a thread, until `close`."""
        self._thread.start()

    def close(self) -> None:
        """Stop; a backup in progress is abandoned. Idempotent."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def make(self) -> None:
        """Make today's backup unless it exists, and delete the oldest. Raises LibraryUnavailable."""
        with advice():
            self._make()

    def _make(self) -> None:
        path = self._folder / f"library-{datetime.now(UTC):%Y-%m-%d}.sqlite3"
        if self._is_lost():  # backups of an empty library would displace the good ones
            raise LibraryUnavailable(LOST)
        if LIBRARY_BACKUPS == 0 or path.exists():
            return
        with self._database.write() as connection:
            connection.execute("DELETE FROM meta WHERE name = 'lost'")
        self._folder.mkdir(exist_ok=True)
        for left in self._folder.glob(f"{_UNFINISHED}*"):
            if time.time() - left.stat().st_mtime > _DAY:  # left by a process that was killed
                shutil.rmtree(left)
        if shutil.disk_usage(self._folder).free < 2 * self._database.size():
            raise LibraryUnavailable("The library is not backed up: its disk has less free space than twice its size.")
        with TemporaryDirectory(dir=self._folder, prefix=_UNFINISHED) as unfinished:
            copy = Path(unfinished) / FILE
            self._database.copy(copy, _PAGES, self._check_stop)
            if not _is_sound(copy):
                raise LibraryUnavailable(DAMAGED)
            with copy.open("rb") as file:
                os.fsync(file.fileno())
            copy.replace(path)
        for old in _newest_first(self._folder)[LIBRARY_BACKUPS:]:
            old.unlink()

    def _is_lost(self) -> bool:
        """Return whether this library was created empty although backups of an earlier one exist, from which it has not been restored."""
        with self._database.read() as connection:
            begun = connection.execute("SELECT 1 FROM meta WHERE name = 'lost'").fetchone()
        return begun is not None and bool(_newest_first(self._folder))

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise LibraryUnavailable("The library is closed.")

    def _run(self) -> None:
        wait = _FIRST_SECONDS
        while not self._stop.wait(wait):
            wait = _EVERY_SECONDS
            try:
                self.make()
                self.problem = ""
            except MantissaError as error:
                self.problem = str(error)
                if not self._stop.is_set():
                    _log.warning("the library: %s", self.problem)


class Restored(NamedTuple):
    """The number of items of each kind in a restored library.

    backup: day of the backup used, "" for none; read: rows read from the old file; whole: whether these are all of its rows; aside: the
    folder that keeps the old file, "" if there was none.
    """

    labels: int
    flags: int
    results: int
    backup: str
    read: int
    whole: bool
    aside: str


def restore(folder: Path) -> Restored:
    """Replace the library's file by the newest sound backup and the rows that SQLite can read in the old file.

    Refused while another process has the library open. The old file is kept in a separate folder. The dataset is read again at the next
    start. Raises LibraryUnavailable.
    """
    current = folder / FILE
    if not current.is_file() and not (folder / BACKUPS).is_dir():
        raise LibraryUnavailable(_NEITHER.format(folder))
    with advice():
        held = hold(folder, "The library is in use: stop the app, or the command that imports into it, and restore it then.", alone=True)
    try:
        with advice():
            return _restore(folder, current)
    finally:
        if held is not None:
            os.close(held)


def _restore(folder: Path, current: Path) -> Restored:
    backup = next((path for path in _newest_first(folder / BACKUPS) if _is_sound(path)), None)
    if backup is None and not current.is_file():
        raise LibraryUnavailable(_NEITHER.format(folder))
    with TemporaryDirectory(dir=folder, prefix=".restore-") as name:
        work = Path(name)
        if backup is not None:
            shutil.copyfile(backup, work / FILE)
        read, whole = 0, True
        with closing(Database(work)) as database:
            if current.is_file():
                read, whole = _rescue(current, work / "old", database)
            with database.write() as connection:
                connection.execute("DELETE FROM dataset_files")
                connection.execute("DELETE FROM meta WHERE name = 'lost'")
            with database.read() as connection:
                restored = counts(connection)
        aside = folder / f"replaced-{datetime.now(UTC):%Y-%m-%dT%H%M%S}"
        if old := [path for suffix in ("", "-wal", "-shm") if (path := current.with_name(FILE + suffix)).exists()]:
            aside.mkdir()
        for path in old:  # including the log, which SQLite would apply to the new file
            path.rename(aside / path.name)
        (work / FILE).replace(current)
    day = backup.stem.removeprefix("library-") if backup else ""
    return Restored(restored.labels, restored.flags, restored.results, day, read, whole, aside.name if old else "")


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("library-*.sqlite3"), reverse=True)


def _is_sound(path: Path) -> bool:
    try:
        with closing(sqlite3.connect(path)) as connection:
            return bool(connection.execute("PRAGMA quick_check").fetchall() == [("ok",)])
    except sqlite3.Error:
        return False


def _rescue(damaged: Path, work: Path, database: Database) -> tuple[int, bool]:
    """Insert the readable rows of a ``damaged`` file, via a copy in ``work``; return their number, and whether these are all rows."""
    work.mkdir()
    for path in (damaged, damaged.with_name(f"{FILE}-wal")):
        if path.exists():
            shutil.copyfile(path, work / path.name)
    lost, read = set[str](), 0
    with closing(sqlite3.connect(work / FILE)) as old:

        def take(asked: str, parse: Callable[..., Any], insert: Callable[[sqlite3.Connection, list[Any], str], int]) -> None:
            nonlocal read
            rows = _readable(old, asked, parse, lost)
            while chunk := list(islice(rows, _CHUNK)):
                read += len(chunk)
                with database.write() as connection:
                    for published in {published for published, _ in chunk}:
                        insert(connection, [item for commit, item in chunk if commit == published], published)

        def result(record: str, number: int) -> tuple[Result, str]:
            known = parse_model(Result, record)
            (packed,) = old.execute("SELECT packed FROM reports WHERE number = ?", (number,)).fetchone()
            text = zlib.decompress(packed).decode()
            found = storable_result(text, key=known.key, created=known.created, contributor=known.contributor)
            if found is None or found.id != known.id:
                raise ValueError(known.id)
            return found, text

        take("SELECT rowid, published, record FROM labels", partial(parse_model, Label), label_rows.take_labels)
        take("SELECT rowid, published, record FROM flags", partial(parse_model, Flag), label_rows.take_flags)
        take("SELECT rowid, published, record, number FROM results", result, result_rows.take_results)
        try:
            meta = old.execute("SELECT name, value FROM meta").fetchall()
            with database.write() as connection:
                connection.executemany("INSERT OR IGNORE INTO meta VALUES (?, ?)", meta)
        except sqlite3.Error as error:
            lost.add(type(error).__name__)
    return read, not lost


def _readable(old: sqlite3.Connection, asked: str, read: Callable[..., Any], lost: set[str]) -> Iterator[tuple[str, Any]]:
    """Yield commit and item of each valid row that can be read, in the order of row numbers; add names of errors to ``lost``.

    A damaged page ends a query; the next query starts one row later, until it reaches a readable page.
    """
    last = failed = 0
    while failed < _GAP:
        try:
            for number, published, *values in old.execute(f"{asked} WHERE rowid > ? ORDER BY rowid", (last + failed,)):
                last, failed = number, 0
                try:
                    yield published, read(*values)
                except Exception as error:  # a damaged row may hold anything
                    lost.add(type(error).__name__)
            return
        except sqlite3.Error as error:
            failed = _GAP if error.sqlite_errorname == "SQLITE_NOTADB" else failed + 1
            lost.add(type(error).__name__)
