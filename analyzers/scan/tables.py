"""The two Parquet files of a scan: a row per checkpoint of the list, and a row per tensor row of the reports.

The same list and options on the same checkpoints give the same bytes, whenever, wherever and by however many processes they are made.
"""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analyzers.dtype_detection.report import Counts, Extremes, Representable
from analyzers.scan.journal import Journal
from analyzers.scan.listing import Listed

if TYPE_CHECKING:
    import pyarrow

CHECKPOINTS, TENSORS = "checkpoints.parquet", "tensors.parquet"

# Rows per row group: only one group is held in memory.
_CHECKPOINT_GROUP, _TENSOR_GROUP = 100, 20_000

_PROBABILITIES = ("fp16", "bf16", "fp32", "fp8")
_EXTREMES = tuple(name for name in Extremes.model_fields if name != "exact")
_COUNTS = tuple(Counts.model_fields)
_FORMATS = tuple(Representable.model_fields)


def write_tables(folder: Path, listed: Sequence[Listed], journal: Journal) -> tuple[int, int]:
    """Write both files into ``folder``, each atomically; returns their numbers of rows. The journal has all without a problem."""
    with (
        _Table(folder / CHECKPOINTS, _checkpoint_schema(), _CHECKPOINT_GROUP) as checkpoints,
        _Table(folder / TENSORS, _tensor_schema(), _TENSOR_GROUP) as tensors,
    ):
        for position, one in enumerate(listed):
            row: dict[str, Any] = {"position": position, "line": one.line, "asked": one.asked}
            if one.problem is not None:
                checkpoints.add(row | {"status": "error", "error": "InvalidReference", "message": one.problem})
                continue
            outcome = journal.read(one.key)
            if not outcome.report:
                checkpoints.add(row | {"status": "error", "error": outcome.error, "message": outcome.message})
                continue
            report = json.loads(outcome.report)
            checkpoints.add(row | _checkpoint_row(report) | {"report": outcome.report})
            for tensor in _tensor_rows(position, report):
                tensors.add(tensor)
    return checkpoints.rows, tensors.rows


def _checkpoint_schema() -> "pyarrow.Schema":
    import pyarrow as pa

    text, whole, real = pa.string(), pa.int64(), pa.float64()
    names = ("status", "error", "message", "ref", "commit", "mode", "storage", "config_dtype", "quantization")
    fields = [("position", whole), ("line", whole), ("asked", text), *((name, text) for name in names)]
    fields += [(name, whole) for name in ("parameters", "bytes", "tensors", "bytes_read", "values_read")]
    fields += [(name, text) for name in ("lineage", "passed_through", "training", "training_basis")]
    fields += [(f"probability_{name}", real) for name in _PROBABILITIES]
    fields += [("fp16_risk", text), *((name, real) for name in _EXTREMES), ("extremes_exact", pa.bool_())]
    fields += [*((name, whole) for name in _COUNTS), *((f"representable_{name}", real) for name in _FORMATS), ("fossil_rows", whole)]
    return pa.schema([*fields, ("id", text), ("report", text)])


def _checkpoint_row(report: dict[str, Any]) -> dict[str, Any]:
    facts, lineage, training = report["checkpoint"], report["lineage"], report["training"]
    row = {name: facts[name] for name in ("ref", "commit", "parameters", "bytes", "tensors", "quantization")}
    row |= {name: report[name] for name in ("mode", "config_dtype", "bytes_read", "values_read", "id")}
    row |= {"status": "ok", "storage": " ".join(each["dtype"] for each in report["storage"])}
    row |= {"lineage": lineage["verdict"], "passed_through": " ".join(lineage["passed_through"]), "fossil_rows": lineage["fossil_rows"]}
    row |= {"training": training["verdict"], "training_basis": training["basis"], "fp16_risk": report["fp16_risk"]["level"]}
    row |= {f"probability_{name}": training["probabilities"].get(name) for name in _PROBABILITIES}
    row |= {name: report["extremes"][name] for name in _EXTREMES} | {"extremes_exact": report["extremes"]["exact"]}
    row |= {name: report["counts"][name] for name in _COUNTS}
    return row | {f"representable_{name}": report["representable"][name] for name in _FORMATS}


def _tensor_schema() -> "pyarrow.Schema":
    import pyarrow as pa

    text, whole, real = pa.string(), pa.int64(), pa.float64()
    fields = [("position", whole), *((name, text) for name in ("ref", "commit", "name", "dtype", "shape", "role"))]
    fields += [(name, whole) for name in ("layer", "tensors", "parameters", "values_read")]
    fields += [(name, real) for name in ("abs_min", "abs_min_nonzero", "abs_max", "norm")]
    fields += [*((name, whole) for name in _COUNTS), *((f"representable_{name}", real) for name in _FORMATS)]
    return pa.schema([*fields, ("lineage", text), ("passed_through", text), ("fossil_rows", whole)])


def _tensor_rows(position: int, report: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """position: of the checkpoint's row, for joining."""
    of = {"position": position, "ref": report["checkpoint"]["ref"], "commit": report["checkpoint"]["commit"]}
    for tensor in report["tensors"]:
        row = of | {name: value for name, value in tensor.items() if name not in ("lineage", "representable")}
        row |= {"shape": "x".join(str(n) for n in tensor["shape"]), "lineage": tensor["lineage"]["verdict"]}
        row |= {f"representable_{name}": tensor["representable"][name] for name in _FORMATS}
        yield row | {"passed_through": " ".join(tensor["lineage"]["passed_through"])}


class _Table:
    """A Parquet file, written under a temporary name and renamed when it is complete."""

    def __init__(self, path: Path, schema: "pyarrow.Schema", group: int) -> None:
        import pyarrow.parquet

        self._path, self._unfinished = path, path.with_name(f".{path.name}.unfinished")
        self._schema = schema
        self._group = group
        self._waiting: list[dict[str, Any]] = []
        self._writer = pyarrow.parquet.ParquetWriter(self._unfinished, schema, compression="zstd")
        self.rows = 0

    def add(self, row: dict[str, Any]) -> None:
        """Add a row; missing columns are null."""
        self._waiting.append(row)
        self.rows += 1
        if len(self._waiting) == self._group:
            self._write()

    def _write(self) -> None:
        import pyarrow

        if self._waiting:
            self._writer.write_table(pyarrow.Table.from_pylist(self._waiting, self._schema))
            self._waiting.clear()

    def __enter__(self) -> "_Table":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._writer.close()
            self._unfinished.unlink(missing_ok=True)
            return
        try:
            self._write()
            self._writer.close()
            replace_durably(self._unfinished, self._path)
        finally:
            self._unfinished.unlink(missing_ok=True)


def replace_durably(unfinished: Path, path: Path) -> None:
    """Rename a finished file to ``path``; after a power failure there is the old file or the new one, complete."""
    for place, change in ((unfinished, lambda: unfinished.replace(path)), (path.parent, lambda: None)):
        descriptor = os.open(place, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        change()
