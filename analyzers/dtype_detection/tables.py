"""The report as pandas tables."""

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from analyzers.account import coverage_tables
from analyzers.data import Interval
from analyzers.dtype_detection.report import (
    BufferRow,
    DtypeReport,
    Evidence,
    Exponent,
    LayerRow,
    QuantizationRole,
    QuantizationRow,
    Storage,
    TensorRow,
    Untouched,
)
from analyzers.extras import extras_explained
from analyzers.tables import frame

if TYPE_CHECKING:
    import pandas


@extras_explained()
def tables(report: DtypeReport) -> "dict[str, pandas.DataFrame]":
    """``summary`` (one row), ``evidence``, ``storage``, ``layers``, ``tensors``, ``exponents``, ``movable``, ``untouched``,
    ``quantization``, ``quantization_roles``, ``intervals``,
    ``buffers``, and those of `coverage_tables`.
    """
    import pandas

    return {
        "summary": pandas.DataFrame([summary_row(report)]),
        "evidence": pandas.DataFrame(list(report.lineage.evidence), columns=[each.name for each in fields(Evidence)]),
        "storage": frame(report.storage, Storage),
        "layers": frame(report.layers, LayerRow),
        "tensors": tensor_table(report.tensors),
        "exponents": frame(report.exponents, Exponent),
        "movable": _movable(report),
        "untouched": frame(report.untouched, Untouched),
        "quantization": frame(report.quantization, QuantizationRow),
        "quantization_roles": frame(report.quantization_roles, QuantizationRole),
        "intervals": pandas.DataFrame(
            [{"share": name, **interval.model_dump()} for name, interval in report.intervals.items()],
            columns=["share", *Interval.model_fields],
        ),
        "buffers": frame(report.buffers, BufferRow),
        **coverage_tables(report.coverage),
    }


def _movable(report: DtypeReport) -> "pandas.DataFrame":
    """A row per format, role and step: the share of the weights that stay where they are."""
    import pandas

    rows = [
        {"format": each.format, "role": role, "step": step, "frozen": frozen}
        for each in (report.movable, report.movable_fp16)
        if each is not None
        for role, shares in {"all": each.frozen, **each.roles}.items()
        for step, frozen in zip(each.steps, shares, strict=True)
    ]
    return pandas.DataFrame(rows, columns=["format", "role", "step", "frozen"])


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
        "coverage": report.covered_share,
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
