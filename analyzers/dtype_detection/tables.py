"""The report as pandas tables."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analyzers import limits
from analyzers.base import Data
from analyzers.dtype_detection.report import BufferRow, DtypeReport, Evidence, Exponent, Interval, LayerRow, Storage, TensorRow

if TYPE_CHECKING:
    import pandas


def tables(report: DtypeReport) -> "dict[str, pandas.DataFrame]":
    """``summary`` (one row), ``evidence``, ``storage``, ``layers``, ``tensors``, ``exponents``, ``intervals``, ``buffers``."""
    import pandas

    return {
        "summary": pandas.DataFrame([summary_row(report)]),
        "evidence": _frame(report.lineage.evidence, Evidence),
        "storage": _frame(report.storage, Storage),
        "layers": _frame(report.layers, LayerRow),
        "tensors": tensor_table(report.tensors),
        "exponents": _frame(report.exponents, Exponent),
        "intervals": pandas.DataFrame(
            [{"share": name, **interval.model_dump()} for name, interval in report.intervals.items()],
            columns=["share", *Interval.model_fields],
        ),
        "buffers": _frame(report.buffers, BufferRow),
    }


def summary_row(report: DtypeReport) -> dict[str, Any]:
    """One row per model, as tables of several models have them."""
    return {
        "model": report.checkpoint.ref,
        "commit": report.checkpoint.commit[:12],
        "parameters": report.checkpoint.parameters,
        "stored": " ".join(row.dtype for row in report.storage),
        "passed_through": " ".join(report.lineage.passed_through),
        "lineage": report.lineage.verdict,
        "trained_in": report.training.verdict,
        "basis": report.training.basis,
        "fp16": report.fp16_risk.level,
        **report.extremes.model_dump(exclude={"exact"}),
        "mode": report.mode,
    }


def tensor_table(rows: Sequence[TensorRow]) -> "pandas.DataFrame":
    """One line per tensor row: nested fields become columns of their own."""
    import pandas

    lines = []
    for row in rows:
        line = row.model_dump(exclude={"representable", "lineage", "shape"})
        line["shape"] = "x".join(str(n) for n in row.shape)
        line["verdict"] = row.lineage.verdict
        line["passed_through"] = " ".join(row.lineage.passed_through)
        line |= {f"exact_in_{name}": share for name, share in row.representable.model_dump().items()}
        lines.append(line)
    return pandas.DataFrame(lines)


def _frame(rows: Sequence[Any], kind: type[Data]) -> "pandas.DataFrame":
    import pandas

    return pandas.DataFrame([row.model_dump() for row in rows], columns=list(kind.model_fields))


def write_csv(reports: Sequence[DtypeReport], folder: Path) -> None:
    """Write every table of ``reports`` into ``folder``, one CSV each, with the model in the first column.

    Tables that are empty for all are left out. ``tensors`` has every tensor, also where the report aggregates them;
    beyond `limits.REPORT_TENSORS` rows it is written as Parquet too, which spreadsheets of that size are better read from.
    """
    import pandas

    folder.mkdir(parents=True, exist_ok=True)
    gathered: dict[str, list[pandas.DataFrame]] = {}
    for report in reports:
        found = tables(report) | {"tensors": tensor_table(report.full_rows())}
        for name, table in found.items():
            if not table.empty:
                if name != "summary":
                    table.insert(0, "model", report.checkpoint.ref)
                gathered.setdefault(name, []).append(table)
    for name, parts in gathered.items():
        whole = pandas.concat(parts, ignore_index=True)
        formula_safe(whole).to_csv(folder / f"{name}.csv", index=False)
        if name == "tensors" and len(whole) > limits.REPORT_TENSORS:
            whole.to_parquet(folder / "tensors.parquet", index=False)


def formula_safe(table: "pandas.DataFrame") -> "pandas.DataFrame":
    """A copy in which no text begins as a formula does: spreadsheets would run it, and names are somebody else's text."""
    return table.map(lambda cell: f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell)
