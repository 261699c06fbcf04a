"""Caches the items in SQLite, for lists and searches. Its file may be deleted whenever no app runs: it is made again of the items."""

import hashlib
import logging
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from analyzers.core.errors import InvalidRequest, LibraryUnavailable
from analyzers.core.untrusted_json import InvalidJson, parse_model
from components.library.folder import Folder, disk
from components.library.initial_labels import initial_labels
from components.library.items import Label, ResultRow

FILE = "library.sqlite3"
_SCHEMA = Path(__file__).with_name("schema.sql").read_text(encoding="utf-8")
_TABLES, _INDEXES = _SCHEMA[: _SCHEMA.index("CREATE INDEX")], _SCHEMA[_SCHEMA.index("CREATE INDEX") :]
_VERSION = int.from_bytes(hashlib.sha256(_SCHEMA.encode()).digest()[:3], "big") + 1
_LINE_BYTES = 40_000  # The longest row of a result, with 65 models, has fewer.
# The cache's size is in KiB.
_SETTINGS = "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA trusted_schema = OFF; PRAGMA cache_size = -64000"
_log = logging.getLogger("mantissa")


class Cache:
    """The cache of the items in ``folder``. Safe to use from several threads. Methods raise LibraryUnavailable if it cannot be used."""

    def __init__(self, folder: Folder) -> None:
        self._folder, self._path, self._closed = folder, folder.path / FILE, False
        self._idle, self._writing = list[sqlite3.Connection](), threading.RLock()
        try:
            self._create()
        except sqlite3.DatabaseError:  # damaged, or of another version
            for path in folder.path.glob(f"{FILE}*"):
                path.unlink()
            with unavailable():
                self._create()
        self.update()
        with unavailable(), self._connection() as connection:
            connection.executescript(_INDEXES)

    def read(self, query: str, *values: Any) -> list[Any]:
        """Return the rows of a query; those of one column as its values."""
        with unavailable(), self._connection() as connection:
            rows = connection.execute(query, values).fetchall()
        return [row[0] for row in rows] if rows and len(rows[0]) == 1 else rows

    def update(self) -> None:
        """Read the files that have changed since the last call. Files of rows that are unpublished only grow, or are read again whole."""
        with self._writing, unavailable(), self._connection() as connection:
            known = dict(connection.execute("SELECT path, size FROM files"))
            found = self._folder.files()
            changed = [path for path, size in found.items() if known.get(path) != size]
            grown = {path for path in changed if path.startswith("unpublished/results/") and 0 < known.get(path, 0) < found[path]}
            stale = [path for path, size in known.items() if found.get(path) != size and path not in grown]
            if not changed and not stale:
                return
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                for path in stale:
                    for table in ("hidden", "all_labels", "all_results"):
                        connection.execute(f"DELETE FROM {table} WHERE file = ?", (path,))  # noqa: S608 - our own names
                    connection.execute("DELETE FROM files WHERE path = ?", (path,))
                for path in sorted(changed):  # published ones first
                    self._read_file(connection, path, known[path] if path in grown else 0)
                    connection.execute("INSERT OR REPLACE INTO files VALUES (?, ?)", (path, found[path]))

    def _read_file(self, connection: sqlite3.Connection, path: str, start: int) -> None:
        half, kind, name = path.split("/")
        how = "REPLACE" if half == "published" else "IGNORE"
        with disk(), (self._folder.path / path).open("rb") as file:
            file.seek(start)
            if kind == "hidden":
                connection.execute("INSERT OR REPLACE INTO hidden VALUES (?, ?)", (name, path))
            elif kind in ("labels", "own"):
                items = _items(path, Label, [file.read(_LINE_BYTES)])
                rows = _labels([label for label, _ in items if label.login or half == "unpublished"], path)
                connection.executemany(f"INSERT OR {how} INTO all_labels VALUES (?, ?, ?, ?, ?, ?, ?)", rows)  # noqa: S608
            else:
                items = _items(path, ResultRow, iter(lambda: file.readline(_LINE_BYTES), b""))
                rows = _results(items, path)
                connection.executemany(f"INSERT OR {how} INTO all_results VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)  # noqa: S608

    def _create(self) -> None:
        with self._connection() as connection:
            (known,) = connection.execute("PRAGMA user_version").fetchone()
            if known not in (0, _VERSION):
                raise sqlite3.DatabaseError
            if not known:
                connection.executescript(f"BEGIN; {_TABLES} PRAGMA user_version = {_VERSION}; COMMIT")
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("DELETE FROM all_labels WHERE file = ''")
                connection.executemany("INSERT INTO all_labels VALUES (?, ?, ?, ?, ?, ?, ?)", _labels(initial_labels(), ""))

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """Lend a connection, which is closed after an error and after `close`."""
        if self._closed:
            raise LibraryUnavailable("The library is closed.")
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = sqlite3.connect(self._path, timeout=30, isolation_level=None, check_same_thread=False)
            connection.executescript(_SETTINGS)
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)
        if self._closed:
            self.close()

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()


@contextmanager
def unavailable() -> Iterator[None]:
    """Convert errors of SQLite to LibraryUnavailable, with advice."""
    try:
        yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", type(error).__name__)
        raise LibraryUnavailable(f"The library's cache cannot be used ({name}): stop the app, delete {FILE}, and start it again.") from None


def searched(text: str, column: str) -> tuple[str, list[str]]:
    """Return a condition that ``column`` has every word of ``text``, and its values."""
    words = text.lower().split()[:10]
    return " AND ".join([f"instr({column}, ?)" for _ in words] or ["1"]), words


def _items(path: str, kind: Any, texts: Iterable[bytes]) -> Iterator[tuple[Any, str]]:
    """Yield the items of a file that are valid, with their JSON; count the others in the log."""
    refused = 0
    for text in texts:
        try:
            yield parse_model(kind, text), text.decode().strip()
        except (ValidationError, InvalidJson, InvalidRequest):
            refused += text != b"\n"
    if refused:
        _log.warning("%s: %d of its items are not valid, and are ignored", path, refused)


def _labels(labels: Iterable[Label], path: str) -> Iterator[tuple[Any, ...]]:
    for label in labels:
        sought = " ".join((label.model, label.precision, label.contributor, label.evidence_link, label.evidence_quote)).lower()
        yield label.id, path, label.model.lower(), label.contributor, label.created, sought, label.model_dump_json()


def _results(items: Iterable[tuple[ResultRow, str]], path: str) -> Iterator[tuple[Any, ...]]:
    for row, text in items:
        sought, model = " ".join((*row.models, row.analyzer, row.answer)).lower(), row.models[0].lower()
        yield row.id, path, row.key, row.analyzer, model, row.created, row.whole, row.wasted, row.shapes, sought, text
