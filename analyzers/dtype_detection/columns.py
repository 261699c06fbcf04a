"""The tables of dtype detection."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from analyzers.columns import TENSOR_NAME, Column, Table, formatted, shape_column
from analyzers.coverage import COVERAGE
from analyzers.dtype_detection.advice import between
from analyzers.dtype_detection.report import (
    VERDICT_WORDS,
    BufferRow,
    DtypeReport,
    Evidence,
    Exponent,
    Extremes,
    Grid,
    LayerRow,
    QuantizationRole,
    QuantizationRow,
    Representable,
    Storage,
    TensorRow,
    Untouched,
)
from analyzers.dtype_detection.sentences import NOTHING_PROVEN, fp16_answer, stored_dtypes, training_answer
from analyzers.formatting import NOTHING, count, magnitude, plural, powers, share
from analyzers.grids.tensor_grid import describe
from analyzers.records import Interval
from analyzers.tensor_words import dtype_name

EXTREMES = tuple(
    Column(name, "" if name == "abs_min_nonzero" else name.replace("_", " "), magnitude, f"extremes.{name}")
    for name in Extremes.model_fields
    if name != "exact"
)
# One row for each model: the terminal joins the rows of several reports.
MODELS = Table(
    "summary",
    lambda report: [report],
    (
        Column("model", "Model", value="checkpoint.ref"),
        Column("commit", value=lambda report: report.checkpoint.short_commit()),
        Column("parameters", "Parameters", count, "checkpoint.parameters"),
        Column("stored", "Stored", value=stored_dtypes),
        Column(
            "passed_through",
            "Passed through",
            value=lambda report: " ".join(report.lineage.passed_through),
            cell=lambda report: (
                " ".join(report.lineage.passed_through) or NOTHING_PROVEN.get(report.lineage.verdict, report.lineage.verdict)
            ),
        ),
        Column("lineage", value="lineage.verdict"),
        Column("trained_in", "Trained in", value="training.verdict", cell=training_answer),
        Column("basis", "Basis", value="training.basis"),
        Column(
            "fp16",
            "fp16",
            value="fp16_risk.level",
            cell=lambda report: fp16_answer(report.fp16_risk.level, report.whole and report.extremes.exact),
        ),
        *EXTREMES,
        Column("mode"),
        Column("coverage", "Coverage", value="covered_share", cell=lambda report: report.short_reach() or "all"),
    ),
)
# One row for each test, with its stored dtype if there are several.
EVIDENCE = Table(
    "evidence",
    lambda report: report.lineage.evidence,
    lambda report: (
        Column("question", "Test", cell=lambda row: powers(row.question)),
        Column("conclusion", "Conclusion", cell=lambda row: powers(row.conclusion)),  # on a phone the screen ends after it
        *([Column("stored", "Stored")] if len({row.stored for row in report.lineage.evidence}) > 1 else []),
        Column("tested", "Tested", count, cell=lambda row: plural(row.tested, row.unit[:-1])),
        Column("exceptions", "Exceptions", count),
        Column("chance", "By chance", share),
    ),
    files=[field.name for field in fields(Evidence)],
)


def _count(key: str, title: str) -> Column:
    """Return a column of counts, with a dash for tensors of which no value was read."""
    return Column(key, title, count, cell=lambda row: count(getattr(row, key)) if row.values_read else NOTHING)


def _verdict(row: TensorRow) -> str:
    return VERDICT_WORDS[row.lineage.verdict] if row.values_read else "not read"


TENSORS = Table(
    "tensors",
    lambda report: report.tensors,
    (
        TENSOR_NAME,
        Column("verdict", "Lineage", value="lineage.verdict", cell=_verdict, width=152),
        *formatted(magnitude, abs_max="Largest", norm="Norm"),
        _count("zero", "Zeros"),
        _count("fossil_rows", "Fossil rows"),
        Column("dtype", "Dtype"),
        shape_column("shape", "Shape"),
        *formatted(magnitude, abs_min_nonzero="Smallest > 0", abs_min="Smallest"),
        _count("nan", "NaN"),
        _count("inf", "Infinite"),
        Column("role", "Role"),
        Column("passed_through", value=lambda row: " ".join(row.lineage.passed_through)),
        *(Column(f"exact_in_{name}", value=f"representable.{name}") for name in Representable.model_fields),
    ),
    files=(
        *(name for name in TensorRow.model_fields if name not in ("representable", "lineage", "shape")),
        "shape", "verdict", "passed_through", *(f"exact_in_{name}" for name in Representable.model_fields),
    ),
    title="Tensors",
)  # fmt: skip


def _movable(report: DtypeReport) -> Iterator[dict[str, Any]]:
    """Yield a row per format, role and step size, with the share of the weights that rounding keeps unchanged."""
    for each in filter(None, (report.movable, report.movable_fp16)):
        for role, shares in {"all": each.frozen, **each.roles}.items():
            for step, frozen in zip(each.steps, shares, strict=True):
                yield {"format": each.format, "role": role, "step": step, "frozen": frozen}


_ERRORS = (Column("rms_rel", "Error", share), *formatted(magnitude, sqnr_db="SQNR, dB"), Column("exact", "Exact", share))
QUANTIZATION = Table(
    "quantization",
    lambda report: report.quantization,
    (
        Column("name", "Name", width=318),
        Column("format", "Format"),
        *_ERRORS,
        Column("saturated", "Saturated", share),
        Column("role", "Role"),
    ),
    files=QuantizationRow.model_fields,
    title="Quantized tensors",
)
QUANTIZATION_ROLES = Table(
    "quantization_roles",
    lambda report: report.quantization_roles,
    (Column("format", "Rounded to"), Column("role", "Role"), *_ERRORS, Column("low", "95% interval of the error", share, cell=between)),
    files=QuantizationRole.model_fields,
)
GRIDS = Table(
    "grids",
    lambda report: report.grids,
    (
        Column("format", "Grid", cell=describe),
        Column("stored", "Stored", cell=lambda row: dtype_name(row.stored)),
        Column("tensors", "Tensors", count),
        Column("parameters", "Parameters", count),
        Column("groups_tested", "Groups", count),
        Column("exceptions", "Off the grid", count),
        Column("outliers", "Outliers", count),
        Column("bits_needed", "Bits needed", magnitude, value=lambda row: row.bits_needed if row.proven else None),
        Column("roles", "Roles", value=lambda row: ", ".join(row.roles)),
    ),
    files=[name for name in Grid.model_fields if name != "roles"] + ["roles"],
    title="Grids",
)
TABLES = (
    MODELS,
    EVIDENCE,
    GRIDS,
    Table("storage", lambda report: report.storage, files=Storage.model_fields),
    Table("layers", lambda report: report.layers, files=LayerRow.model_fields),
    TENSORS,
    Table("exponents", lambda report: report.exponents, files=Exponent.model_fields),
    Table("movable", _movable, files=("format", "role", "step", "frozen")),
    Table("untouched", lambda report: report.untouched, files=Untouched.model_fields),
    QUANTIZATION,
    QUANTIZATION_ROLES,
    Table(
        "intervals",
        lambda report: ({"share": name, **vars(interval)} for name, interval in report.intervals.items()),
        files=("share", *Interval.model_fields),
    ),
    Table("buffers", lambda report: report.buffers, files=BufferRow.model_fields),
    *COVERAGE,
)
