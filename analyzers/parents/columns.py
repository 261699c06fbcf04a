"""The tables of parents."""

from collections.abc import Iterator
from typing import Any

from analyzers.columns import Column, Table, formatted
from analyzers.coverage import COVERAGE
from analyzers.formatting import NOTHING, count, magnitude, share
from analyzers.parents.conversion_text import damage_first, damaged, relation
from analyzers.parents.report import Candidate, Conversion, Evidence, MovedLayer, Parent, ParentsReport


def weight(value: float) -> str:
    """Write a weight with four decimals, never -0."""
    return f"{round(value, 4) + 0.0:.4f}" if abs(value) < 1e6 else "unknown"


def between(low: float, high: float) -> str:
    """Write the interval of a weight."""
    return f"{weight(low)} to {weight(high)}" if high - low < 1e6 else "unknown"


# In the order of the report: proofs first.
EVIDENCE = Table(
    "evidence",
    lambda report: report.evidence,
    (Column("kind", "Kind", cell=lambda row: row.kind_of.capitalize()), Column("text", "Evidence")),
    files=Evidence.model_fields,
)


def _without_outliers(row: Any) -> str:
    """Write distance and cosine without outliers that dominate them."""
    few = row.outliers
    return NOTHING if few is None else f"{share(few.distance)}, cosine {magnitude(few.cosine)}"


# In the order of the report: the most similar candidate first.
CANDIDATES = Table(
    "candidates",
    lambda report: report.candidates,
    (
        Column("ref", "Candidate"),
        Column("compared", "Values compared", count),
        *formatted(share, equal_share="Equal in bf16", equal_by_chance="By chance", distance="|X - P| / |P|"),
        *formatted(magnitude, cosine="Cosine", cosine_null="± by chance"),
        Column("outliers", "Without outliers", cell=_without_outliers, value=lambda row: row.distance_without if row.outliers else None),
        Column("vectors_equal", "Norms and biases equal", share),
    ),
    files=Candidate.model_fields,
)
PARENTS = Table(
    "parents",
    lambda report: report.fit.parents if report.fit else (),
    lambda report: (
        Column("ref", "Candidate", cell=lambda row: " or ".join((row.ref, *row.alike))),
        Column("weight", "Weight", weight),
        Column("low", _interval(report), weight, cell=lambda row: between(row.low, row.high)),
    ),
    files=Parent.model_fields,
)


def _interval(report: ParentsReport) -> str:
    return "Exact between" if report.fit and report.fit.weights_by == "exact-values" else "95% interval"


def _layers(report: ParentsReport) -> Iterator[dict[str, Any]]:
    """Yield one row per layer and parent."""
    fit = report.fit
    for row in fit.layers if fit else ():
        for parent, value, low, high in zip(fit.parents if fit else (), row.weights, row.low, row.high, strict=True):
            yield {**vars(row), "parent": parent.ref, "weight": value, "low": low, "high": high}


def _layer(layer: int | None) -> str:
    return "outside" if layer is None else f"{layer}"


def _of_parent(number: int, name: str) -> Column:
    def cell(row: Any) -> str:
        return f"{weight(row.weights[number])} ({between(row.low[number], row.high[number])})"

    return Column(f"{number}", name, weight, lambda row: row.weights[number], cell)


# The table for people has a row per layer and a column per parent.
BY_LAYER = Table(
    "",
    lambda report: report.fit.layers if report.fit else (),
    lambda report: (
        Column("layer", "Layer", cell=lambda row: _layer(row.layer)),
        *(_of_parent(number, parent.ref) for number, parent in enumerate(report.fit.parents if report.fit else ())),
        *formatted(share, residual="Left unexplained", exact_share="Exact"),
    ),
)
LAYER_MAP = Table(
    "layer_map",
    lambda report: report.layer_map,
    (
        Column("layer", "Layer", cell=lambda row: _layer(row.layer)),
        Column("ref", "Comes from"),
        Column("source", "Layer there", str, cell=lambda row: _layer(row.source)),
        Column("equal_share", "Equal in bf16", share),
    ),
    files=MovedLayer.model_fields,
)


# Damaged tensors first, because they need attention.
CONVERSION = Table(
    "conversion",
    lambda report: damage_first(report.conversion),
    (
        Column("name", "Tensor", width=318),
        Column("relation", "Relation", cell=lambda row: f"{relation(row)}{' (damaged)' if damaged(row) else ''}", width=170),
        Column("exceptions", "Exceptions", count),
        Column("note", "Note", width=200),
        Column(
            "sources", "Source", value=lambda row: ", ".join(row.sources), cell=lambda row: ", ".join(row.sources) or NOTHING, width=290
        ),
        Column("form", "Form", width=130),
        Column("values", "Values", count),
    ),
    files=Conversion.model_fields,
    title="How each tensor got here",
)


def _summary(report: ParentsReport) -> Iterator[dict[str, Any]]:
    fit = report.fit
    yield {
        "model": report.checkpoint.ref,
        "commit": report.checkpoint.short_commit(),
        "verdict": report.verdict,
        "statement": report.statement,
        "best_candidate": report.candidates[0].ref,
        **report.candidates[0].model_dump(include={"equal_share", "equal_by_chance", "distance", "cosine"}),
        **(fit.model_dump(include={"residual", "exact_share", "exact_by_chance"}) if fit else {}),
        "values_compared": report.values_compared,
        "mode": report.mode,
        "coverage": report.covered_share,
    }


TABLES = (
    Table("summary", _summary),
    CANDIDATES,
    PARENTS,
    Table("layers", _layers, files=("layer", "parent", "weight", "low", "high", "residual", "exact_share")),
    LAYER_MAP,
    EVIDENCE,
    CONVERSION,
    *COVERAGE,
)
