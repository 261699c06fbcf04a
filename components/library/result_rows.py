"""Stores results in the database: a report's JSON byte for byte, under its content id; the oldest are deleted if there are too many."""

import sqlite3
import zlib
from collections.abc import Iterable
from typing import Any

from analyzers.core import limits
from analyzers.core.records import Record
from analyzers.core.untrusted_json import parse_json, parse_model
from components.library import model_rows
from components.library.database import ORDERS, insert
from components.library.library_status import state_of
from components.library.list_query import List
from components.library.same_shapes import fingerprint
from components.library.savings import savings
from components.library.schema import Result

LIBRARY_RESULTS = 100_000  # Results stored here; the oldest are deleted first, labels never.
COLUMNS = "record, published"
SAME_KEY = 8  # most results of one key that are considered
_WITHDRAWN = "withdrawn "  # prefix of an id, as a name in `meta`
_FAST = 4  # level of zlib: at any level, JSON shrinks to a sixth
# Columns that are fields of a result.
_COPIED = ("id", "key", "analyzer", "created", "size", "storage", "passed_through", "trained_in", "fp16_risk", "contributor")


class ResultRow(Record):
    """A result with its state. state: "saved here", or "published" in ``commit`` of the dataset."""

    result: Result
    state: str
    commit: str


def take_results(connection: sqlite3.Connection, results: Iterable[tuple[Result, str]], published: str) -> int:
    """Insert new results (with their JSON), mark known ones as published, and delete the oldest.

    published: the dataset's commit that contains them, or "". Returns the number of new results.
    """
    barred = withdrawn(connection) if published else set()
    new = [result for result, text in results if result.id not in barred and _insert(connection, result, text, published)]
    evicted = _evict(connection) if new else set()
    for key in {result.models[0].lower() for result in new} | evicted:
        model_rows.refresh(connection, key)
    return len(new)


def add_result(connection: sqlite3.Connection, result: Result, text: str) -> ResultRow:
    """Add a result computed here; return its row, or that of the known result with its id, to which the key is added."""
    allow(connection, [result.id])
    if not take_results(connection, [(result, text)], ""):
        _add_key(connection, result.id, result.key)
    row = next(iter(find(connection, "id", result.id)), None)
    return row or ResultRow(result=result, state="saved here", commit="")


def repositories(connection: sqlite3.Connection) -> list[str]:
    """Return the ids of all repositories with results, as the subject or otherwise."""
    asked = "SELECT DISTINCT value FROM results, json_each(record, '$.models') WHERE value NOT GLOB 'sample:*'"
    return [model for (model,) in connection.execute(asked)]


def withdraw(connection: sqlite3.Connection, model: str) -> None:
    """Delete the results in which ``model`` (lower case) occurs, and do not import them from the dataset again; see `withdrawn`."""
    found = connection.execute(
        "SELECT number, id, model_key FROM results WHERE instr(sought, :model) "
        "AND EXISTS (SELECT 1 FROM json_each(record, '$.models') WHERE lower(value) = :model)",
        {"model": model},
    ).fetchall()
    for number, result_id, _ in found:
        _delete(connection, number)
        connection.execute("INSERT OR IGNORE INTO meta VALUES (?, '')", (f"{_WITHDRAWN}{result_id}",))
    for key in {key for _, _, key in found}:
        model_rows.refresh(connection, key)


def withdrawn(connection: sqlite3.Connection) -> set[str]:
    """Return the ids of results that were withdrawn and may still be in the dataset."""
    names = connection.execute("SELECT name FROM meta WHERE name GLOB ?", (f"{_WITHDRAWN}*",))
    return {name.removeprefix(_WITHDRAWN) for (name,) in names}


def allow(connection: sqlite3.Connection, ids: Iterable[str]) -> None:
    """Accept results with these ids again, because the dataset no longer has them or they were computed again from public repositories."""
    connection.executemany("DELETE FROM meta WHERE name = ?", [(f"{_WITHDRAWN}{result_id}",) for result_id in ids])


def _delete(connection: sqlite3.Connection, number: int) -> None:
    connection.execute("DELETE FROM results WHERE number = ?", (number,))
    connection.execute("DELETE FROM reports WHERE number = ?", (number,))


def _insert(connection: sqlite3.Connection, result: Result, text: str, published: str) -> bool:
    packed = zlib.compress(text.encode(), _FAST)
    overview = result.analyzer == "dtype" and result.whole
    nbytes, wasted = savings(text) if overview or result.analyzer == "check" else (None, None)
    facts = result.model_dump(include={*_COPIED})
    facts |= {"model": result.models[0], "model_key": result.models[0].lower(), "packed": len(packed), "overview": overview}
    facts |= {"sought": " ".join((*result.models, result.contributor)).lower(), "public": not result.sample}
    facts |= {"shapes": fingerprint(text) if overview else "", "bytes": nbytes, "wasted": wasted}
    number = insert(connection, "results", facts | {"record": result.model_dump_json()}, published)
    if number is not None:
        connection.execute("INSERT INTO reports (number, packed) VALUES (?, ?)", (number, packed))
    return number is not None


def _add_key(connection: sqlite3.Connection, result_id: str, key: str) -> None:
    """Add the key to a result that has none."""
    row = connection.execute("SELECT record FROM results WHERE id = ? AND key = ''", (result_id,)).fetchone()
    if row is not None and key:
        record = parse_model(Result, row[0]).model_copy(update={"key": key}).model_dump_json()
        connection.execute("UPDATE results SET key = ?, record = ? WHERE id = ?", (key, record, result_id))


def report(connection: sqlite3.Connection, result_id: str) -> bytes | None:
    """Return the JSON of a result, byte for byte; None if there is none."""
    row = connection.execute("SELECT reports.packed FROM results JOIN reports USING (number) WHERE results.id = ?", (result_id,)).fetchone()
    return None if row is None else zlib.decompress(row[0])


def find(connection: sqlite3.Connection, column: str, value: str) -> tuple[ResultRow, ...]:
    """Return the newest results with this "id" (at most one) or "key"."""
    assert column in ("id", "key")
    asked = f"SELECT {COLUMNS} FROM results WHERE {column} = ? ORDER BY created DESC LIMIT ?"  # noqa: S608 - one of two names
    return tuple(result_row(row) for row in connection.execute(asked, (value, SAME_KEY))) if value else ()


def naming(connection: sqlite3.Connection, analyzer: str, model: str, most: int) -> list[str]:
    """Return the ids of the newest results of ``analyzer`` in which ``model`` (lower case) occurs, other than as the subject."""
    asked = (
        "SELECT id FROM results WHERE analyzer = :analyzer AND instr(sought, :model) "
        "AND EXISTS (SELECT 1 FROM json_each(record, '$.models') WHERE key > 0 AND lower(value) = :model) "
        "ORDER BY created DESC LIMIT :most"
    )
    return [result_id for (result_id,) in connection.execute(asked, {"analyzer": analyzer, "model": model, "most": most})]


def result_row(row: Any) -> ResultRow:
    """Build a result's row from the columns `COLUMNS`."""
    record, commit = row
    fields = parse_json(record)
    fields |= {"models": tuple(fields["models"]), "commits": tuple(fields["commits"])}
    result = Result.model_construct(**fields)  # validated when it was written
    return ResultRow.model_construct(result=result, state=state_of(commit), commit=commit)


LIST = List(
    table="results",
    columns=COLUMNS,
    row=result_row,
    search="sought",
    same={"model": "model_key"} | {name: name for name in ("analyzer", "trained_in", "fp16_risk", "contributor")},
    words={"storage": "storage", "passed_through": "passed_through"},
    sorts=ORDERS["results"],
    newest="created",
    facets=("analyzer", "storage", "passed_through", "trained_in", "fp16_risk"),
)


def _evict(connection: sqlite3.Connection) -> set[str]:
    """Delete the oldest results beyond LIBRARY_RESULTS and LIBRARY_BYTES, except the last; return the models they were about."""
    gone = set[str]()
    count, nbytes = connection.execute("SELECT COUNT(*), SUM(packed) FROM results").fetchone()
    while count > 1 and (count > LIBRARY_RESULTS or nbytes > limits.LIBRARY_BYTES):
        number, key, packed = connection.execute(
            "SELECT number, model_key, packed FROM results ORDER BY created, number LIMIT 1"
        ).fetchone()
        _delete(connection, number)
        gone.add(key)
        count, nbytes = count - 1, nbytes - packed
    return gone
