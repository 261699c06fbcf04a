"""The two Parquet files of a scan: one row per checkpoint of the list, and one per tensor row of the reports.

The files are reproducible: the same list, options and checkpoints give the same bytes, for any number of processes.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from analyzers.core.atomic_files import replacing
from analyzers.dtype.labelled_models import PRECISIONS
from analyzers.dtype.rows import Counts, Extremes, Representable
from analyzers.scan.listing import Listed
from analyzers.scan.outcomes import Outcomes

CHECKPOINTS, TENSORS = "checkpoints.parquet", "tensors.parquet"

# Rows per row group; only one group is held in memory.
_CHECKPOINT_GROUP, _TENSOR_GROUP = 100, 20_000

Column = tuple[str, str, str]  # Name, type, and path in the JSON of a report or of a tensor row.


def _columns(kind: str, **paths: str) -> list[Column]:
    return [(name, kind, path) for name, path in paths.items()]


_COUNTS = _columns("int64", **{name: f"counts.{name}" for name in Counts.model_fields})
_REPRESENTABLE = _columns("double", **{f"representable_{name}": f"representable.{name}" for name in Representable.model_fields})

_LINE = [("position", "int64"), ("line", "int64"), *((name, "string") for name in ("asked", "status", "error", "message"))]
_CHECKPOINT = [
    *_columns("string", ref="checkpoint.ref", commit="checkpoint.commit", mode="mode", storage="storage.dtype"),
    *_columns("string", config_dtype="config_dtype", quantization="checkpoint.quantization"),
    *_columns("int64", parameters="checkpoint.parameters", bytes="checkpoint.bytes", tensors="checkpoint.tensors"),
    *_columns("int64", bytes_read="bytes_read", values_read="values_read"),
    *_columns("string", lineage="lineage.verdict", passed_through="lineage.passed_through"),
    *_columns("string", training="training.verdict", training_basis="training.basis"),
    *_columns("double", **{f"probability_{name}": f"training.probabilities.{name}" for name in PRECISIONS}),
    *_columns("string", fp16_risk="fp16_risk.level"),
    *_columns("double", **{name: f"extremes.{name}" for name in Extremes.model_fields if name not in ("exact", "abs_max_in")}),
    *_columns("bool", extremes_exact="extremes.exact"),
    *_columns("string", abs_max_in="extremes.abs_max_in"),
    *_COUNTS,
    *_REPRESENTABLE,
    *_columns("int64", fossil_rows="lineage.fossil_rows"),
    *_columns("double", coverage="coverage.0.share"),
    *_columns("string", id="id"),
]
_JOIN = [("position", "int64"), ("ref", "string"), ("commit", "string")]
_TENSOR = [
    *_columns("string", name="name", dtype="dtype", shape="shape", role="role"),
    *_columns("int64", layer="layer", parameters="parameters", values_read="values_read"),
    *_columns("double", abs_min="abs_min", abs_min_nonzero="abs_min_nonzero", abs_max="abs_max", norm="norm"),
    *((name, kind, name) for name, kind, _ in _COUNTS),
    *_REPRESENTABLE,
    *_columns("string", lineage="lineage.verdict", passed_through="lineage.passed_through"),
    *_columns("int64", fossil_rows="fossil_rows"),
]


def _cells(columns: Sequence[Column], data: dict[str, Any]) -> dict[str, Any]:
    return {name: _at(data, path) for name, _, path in columns}


def _at(data: Any, path: str) -> Any:
    """Return the value at ``path``; values of list entries are joined to one text. None if a key, or the entry ``0``, is missing."""
    for key in path.split("."):
        if key == "0" or data is None:
            data = data[0] if data else None
            continue
        data = [each[key] for each in data] if isinstance(data, list) else data.get(key)
    return ("x" if path == "shape" else " ").join(map(str, data)) if isinstance(data, list) else data


def write_tables(folder: Path, listed: Sequence[Listed], outcomes: Outcomes) -> None:
    """Write both files into ``folder``, each atomically.

    outcomes: one for every listed reference without a problem.
    """
    of_checkpoint = [*_LINE, *(each[:2] for each in _CHECKPOINT), ("report", "string")]
    with (
        _table(folder / CHECKPOINTS, of_checkpoint, _CHECKPOINT_GROUP) as add_checkpoint,
        _table(folder / TENSORS, [*_JOIN, *(each[:2] for each in _TENSOR)], _TENSOR_GROUP) as add_tensor,
    ):
        for position, one in enumerate(listed):
            row: dict[str, Any] = {"position": position, "line": one.line, "asked": one.asked}
            if one.problem is not None:
                add_checkpoint(row | {"status": "error", "error": "InvalidReference", "message": one.problem})
                continue
            outcome, report = outcomes.read(one.key)
            if report is None:
                add_checkpoint(row | {"status": "error", "error": outcome.error, "message": outcome.message})
                continue
            add_checkpoint(row | {"status": "ok", "report": outcome.report} | _cells(_CHECKPOINT, report))
            of = {"position": position, "ref": report["checkpoint"]["ref"], "commit": report["checkpoint"]["commit"]}
            for tensor in report["tensors"]:
                add_tensor(of | _cells(_TENSOR, tensor))


@contextmanager
def _table(path: Path, columns: Sequence[tuple[str, str]], group: int) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Open a Parquet file, which appears at ``path`` when the block ends. Yields the function that adds a row; missing columns are null."""
    import pyarrow.parquet

    schema, waiting = pyarrow.schema(columns), list[dict[str, Any]]()
    with replacing(path) as file, pyarrow.parquet.ParquetWriter(file, schema, compression="zstd") as writer:

        def write() -> None:
            if waiting:
                writer.write_table(pyarrow.Table.from_pylist(waiting, schema))
                waiting.clear()

        def add(row: dict[str, Any]) -> None:
            waiting.append(row)
            if len(waiting) == group:
                write()

        yield add
        write()
