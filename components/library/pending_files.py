"""Prepares files of the dataset: items waiting to be published, and small files to be merged.

A batch is fixed before it is sent, so that a retry sends the same file.
"""

import json
import sqlite3
from collections.abc import Callable, Collection
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

from analyzers.core.untrusted_json import parse_model
from components.library import label_rows, result_rows
from components.library.database import Database
from components.library.dataset_rows import TABLES, Table, chunks, known, path_of, result_row, row_of, take, to_parquet
from components.library.schema import Flag, Label, Result

_SHARD_BYTES = 16_000_000  # Files of the dataset are merged, in memory, up to this size.
LIBRARY_FILES = 24  # Small files of one kind in the dataset, beyond which they are merged.
_BATCH_ROWS = 2_000  # Rows that one commit to the library's dataset adds.
_BATCH_BYTES = 24_000_000  # JSON of reports that one commit to the library's dataset adds.

if TYPE_CHECKING:
    from analyzers.checkpoints.hub.hub_repository import HubRepository

_PUBLIC = {"labels": "", "flags": "", "results": " AND public"}


class Batch(NamedTuple):
    """Items of one table that become one file of the dataset."""

    table: Table
    path: str


def settle(connection: sqlite3.Connection) -> list[Batch]:
    """Return the batches to send: earlier ones not known to be published, otherwise at most one new batch per table."""
    begun = [
        Batch(table, path)
        for table in TABLES
        for (path,) in connection.execute(
            f"SELECT DISTINCT batch FROM {table} WHERE published = '' AND batch IS NOT NULL{_PUBLIC[table]}"  # noqa: S608 - our own names
        )
    ]
    return begun or [Batch(table, path) for table in TABLES if (path := _begin(connection, table))]


def content(connection: sqlite3.Connection, batch: Batch) -> bytes:
    """Return the file of a batch, with those of its items that still exist in the database."""
    rows = connection.execute(f"SELECT record, id FROM {batch.table} WHERE batch = ? ORDER BY id", (batch.path,)).fetchall()  # noqa: S608
    return to_parquet(batch.table, [_row(connection, batch.table, *row) for row in rows])


def is_own(connection: sqlite3.Connection, batch: Batch) -> bool:
    """Return whether a file of the dataset is a batch sent from this library."""
    asked = f"SELECT 1 FROM {batch.table} WHERE batch = ? LIMIT 1"  # noqa: S608
    return connection.execute(asked, (batch.path,)).fetchone() is not None


def mark(connection: sqlite3.Connection, batch: Batch, commit: str) -> None:
    """Record that a batch is in the dataset as of ``commit``."""
    updated = connection.execute(
        f"UPDATE {batch.table} SET published = ? WHERE batch = ? AND published = ''",  # noqa: S608
        (commit, batch.path),
    )
    known_file(connection, batch.path, updated.rowcount, 0, "")


def waits(connection: sqlite3.Connection) -> bool:
    """Return whether any item is waiting to be published."""
    asked = (f"SELECT 1 FROM {table} WHERE published = ''{_PUBLIC[table]} LIMIT 1" for table in TABLES)  # noqa: S608
    return any(connection.execute(one).fetchone() is not None for one in asked)


def send_again(connection: sqlite3.Connection) -> int:
    """Mark every published item as waiting again; return how many there are."""
    again = "SET published = '', batch = NULL WHERE published <> ''"
    return sum(connection.execute(f"UPDATE {table} {again}").rowcount for table in TABLES)


def known_file(connection: sqlite3.Connection, path: str, items: int, refused: int, reason: str) -> None:
    """Record that a file of the dataset was imported, or written by this library."""
    connection.execute("INSERT OR REPLACE INTO dataset_files VALUES (?, ?, ?, ?)", (path, items, refused, reason))


def forget_files(connection: sqlite3.Connection, there: Collection[str]) -> None:
    """Forget files that are no longer in the dataset, because they were merged or removed."""
    known = [path for (path,) in connection.execute("SELECT path FROM dataset_files")]
    connection.executemany("DELETE FROM dataset_files WHERE path = ?", [(path,) for path in known if path not in there])


def take_in(connection: sqlite3.Connection, table: Table, items: list[Any], commit: str) -> None:
    """Import items of the dataset: insert new ones, mark known ones as published."""
    take: dict[Table, Callable[[sqlite3.Connection, list[Any], str], int]] = {
        "labels": label_rows.take_labels,
        "flags": label_rows.take_flags,
        "results": result_rows.take_results,
    }
    take[table](connection, items, commit)


def _begin(connection: sqlite3.Connection, table: Table) -> str:
    """Make a batch of the oldest waiting items; return its path, "" if nothing is waiting."""
    size = "size" if table == "results" else "0"
    rows = connection.execute(
        f"SELECT id, {size} FROM {table} WHERE published = '' AND batch IS NULL{_PUBLIC[table]} ORDER BY created, id LIMIT ?",  # noqa: S608
        (_BATCH_ROWS,),
    ).fetchall()
    if not rows:
        return ""
    ids = [item for item, _ in chunks(rows, lambda row: row[1], _BATCH_ROWS, _BATCH_BYTES)[0]]
    path = path_of(table, ids)
    connection.execute(f"UPDATE {table} SET batch = ? WHERE id IN (SELECT value FROM json_each(?))", (path, json.dumps(ids)))  # noqa: S608
    return path


def _row(connection: sqlite3.Connection, table: Table, record: str, item: str) -> dict[str, Any]:
    if table == "labels":
        return parse_model(Label, record).model_dump()
    if table == "flags":
        return parse_model(Flag, record).model_dump()
    report = result_rows.report(connection, item)
    assert report is not None
    return result_row(parse_model(Result, record), report.decode())


class Rewrite(NamedTuple):
    """One file that replaces the ``old`` ones in a commit."""

    message: str
    path: str
    content: bytes
    old: tuple[str, ...]
    items: int


def plan_merge(database: Database, repository: "HubRepository") -> Rewrite | None:
    """Return the next merge; None if no table has more than LIBRARY_FILES small files.

    Files with refused rows are left unchanged: other programs may have written them. Raises HubError.
    """
    with database.read() as connection:
        whole = {path for (path,) in connection.execute("SELECT path FROM dataset_files WHERE refused = 0")}
    sizes = {path: repository.files[path] for path in repository.files if path in whole}
    for table in TABLES:
        small = sorted((size, path) for of, path in known(list(sizes)) if of == table and (size := sizes[path]) <= _SHARD_BYTES // 2)
        if len(small) > LIBRARY_FILES:
            # the smallest files, at least two, since each has at most half of the bytes
            return _merge(table, [path for _, path in chunks(small, lambda file: file[0], len(small), _SHARD_BYTES)[0]], repository)
    return None


def plan_removal(database: Database, repository: "HubRepository") -> Rewrite | None:
    """Return the next file without withdrawn results, replacing one that has some; None, once, if no file has any. Raises HubError."""
    with database.read() as connection:
        gone = result_rows.withdrawn(connection)
    if not gone:
        return None
    for path in (path for table, path in known(list(repository.files)) if table == "results"):
        with closing(repository.open(path)) as file:
            rows = [row_of(item) for part in take("results", file) for item in part.items]
        rest = [row for row in rows if row["id"] not in gone]
        if len(rest) < len(rows):
            return _rewrite("Remove results of models that are not public", "results", rest, [path])
    with database.write() as connection:
        result_rows.allow(connection, gone)
    return None


def _merge(table: Table, old: list[str], repository: "HubRepository") -> Rewrite | None:
    rows: dict[str, dict[str, Any]] = {}
    for path in old:
        with closing(repository.open(path)) as file:
            for part in take(table, file):
                if part.refused:
                    return None
                rows |= {row["id"]: row for row in map(row_of, part.items)}
    return _rewrite(f"Merge {len(old)} files", table, sorted(rows.values(), key=lambda row: (row["created"], row["id"])), old)


def _rewrite(message: str, table: Table, rows: list[dict[str, Any]], old: list[str]) -> Rewrite:
    path = path_of(table, [row["id"] for row in rows])
    return Rewrite(message, path, to_parquet(table, rows), tuple(name for name in old if name != path), len(rows))
