"""Exports the library as files: Parquet, CSV without formulas, JSON lines; and the classifier's training set."""

import csv
import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from analyzers.core.atomic_files import replacing
from analyzers.core.errors import InvalidRequest
from analyzers.core.tables import safe
from analyzers.core.terminal import printable_json
from analyzers.core.untrusted_json import parse_json
from analyzers.dtype_detection.labelled_models import labelled_extremes, precision_of
from components.library import model_rows, result_rows
from components.library.consensus import COLUMNS as LABEL_COLUMNS
from components.library.consensus import label_row
from components.library.database import Database
from components.library.dataset_rows import LABEL_FIELDS, RESULT_FACTS, columns_of, schema_of

KINDS = ("labels", "results", "models")
# Kinds and formats of exports; the classifier's training set is only CSV.
FILES = frozenset({*product(KINDS, ("parquet", "csv", "jsonl")), ("training", "csv")})

_ROWS = 5_000
_COMMITTED = {"state": str, "commit": str}
_FIELDS: dict[str, dict[str, Any]] = {
    "labels": LABEL_FIELDS | {"current": bool, "flags": int, "proposal": bool} | _COMMITTED,
    "results": RESULT_FACTS | _COMMITTED,
    "models": columns_of(model_rows.ModelRow),
}
_COLUMNS = {"labels": LABEL_COLUMNS, "results": result_rows.COLUMNS, "models": model_rows.COLUMNS}
_MAGNITUDES = ("abs_min", "abs_max", "norm_min", "norm_max")


def export(database: Database, folder: Path, kind: str, form: str) -> Path:
    """Write ``mantissa-KIND.FORM`` into ``folder``, holding a few thousand rows in memory at a time. See `Library.export`."""
    if (kind, form) not in FILES:
        raise InvalidRequest("The library is exported as labels, results or models, in the format parquet, csv or jsonl.")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"mantissa-{kind}.{form}"
    with replacing(path) as file:
        if kind == "training":
            training_set(database, file)
        else:
            {"parquet": _write_parquet, "csv": _write_csv, "jsonl": _write_jsonl}[form](file, kind, _batches(database, kind))
    return path


def training_set(database: Database, path: Path) -> None:
    """Write the labels that the classifier can be fitted on: one row per model with a consensus and extremes.

    Extremes are those of the reference table, or of the newest exact report with a row for every tensor.
    """
    known = {each.model.lower() for each in labelled_extremes()}
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("model_id", "training_precision", *_MAGNITUDES))
        for model, precision, record in _labelled(database):
            if precision_of(precision) is None:
                continue
            found = parse_json(record) if record else {}
            magnitudes = [found.get(name) for name in _MAGNITUDES]
            if model.lower() in known:
                writer.writerow((model, precision, "", "", "", ""))
            elif None not in magnitudes:
                writer.writerow((model, precision, *(repr(value) for value in magnitudes)))


def _labelled(database: Database) -> Iterator[tuple[str, str, str | None]]:
    """Yield (model, consensus, record of its newest result with magnitudes) of each model that has a consensus, by name."""
    asked = (
        "SELECT model_key, model, precision, (SELECT record FROM results WHERE results.model_key = models.model_key AND "
        "analyzer = 'dtype' AND json_extract(record, '$.abs_max') IS NOT NULL ORDER BY created DESC LIMIT 1) "
        "FROM models WHERE precision <> '' AND model_key > ? ORDER BY model_key LIMIT ?"
    )
    for rows in _pages(database, asked, ""):
        yield from rows


def _batches(database: Database, kind: str) -> Iterator[list[dict[str, Any]]]:
    """Yield all rows in the order of insertion, in batches."""
    asked = f"SELECT number, {_COLUMNS[kind]} FROM {kind} WHERE number > ? ORDER BY number LIMIT ?"  # noqa: S608 - our own names
    for rows in _pages(database, asked, -1):
        yield [_flat(kind, row) for row in rows]


def _pages(database: Database, asked: str, last: Any) -> Iterator[list[Any]]:
    """Yield the rows of a query without their first column, the sort key; a transaction per few thousand rows keeps writers unblocked."""
    while True:
        with database.read() as connection:
            rows = connection.execute(asked, (last, _ROWS)).fetchall()
        if not rows:
            return
        yield [row[1:] for row in rows]
        last = rows[-1][0]


def _flat(kind: str, row: Any) -> dict[str, Any]:
    if kind == "models":
        return model_rows.facts(row)
    item = label_row(row) if kind == "labels" else result_rows.result_row(row)
    standing = item.model_dump()
    record: dict[str, Any] = standing.pop("label" if kind == "labels" else "result")
    return record | standing


def _write_parquet(path: Path, kind: str, batches: Iterator[list[dict[str, Any]]]) -> None:
    import pyarrow
    from pyarrow import parquet

    schema = schema_of(_FIELDS[kind])
    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        for batch in batches:
            writer.write_table(pyarrow.Table.from_pylist(batch, schema))


def _write_csv(path: Path, kind: str, batches: Iterator[list[dict[str, Any]]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_FIELDS[kind])
        for batch in batches:
            writer.writerows([_cell(row[name]) for name in _FIELDS[kind]] for row in batch)


def _cell(value: Any) -> Any:
    """Convert a value to a cell of a CSV file that no program takes for a formula."""
    text = " ".join(value) if isinstance(value, list | tuple) else value
    return safe(text) if isinstance(text, str) else text


def _write_jsonl(path: Path, kind: str, batches: Iterator[list[dict[str, Any]]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for batch in batches:
            file.writelines(printable_json(json.dumps(row, ensure_ascii=False, allow_nan=False)) + "\n" for row in batch)
