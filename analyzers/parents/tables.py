"""The report as pandas tables."""

from typing import TYPE_CHECKING

from analyzers.account import coverage_tables
from analyzers.extras import extras_explained
from analyzers.parents.conversion_text import damage_first
from analyzers.parents.report import Candidate, Conversion, Evidence, MovedLayer, Parent, ParentsReport
from analyzers.tables import frame, table

if TYPE_CHECKING:
    import pandas


@extras_explained()
def tables(report: ParentsReport) -> "dict[str, pandas.DataFrame]":
    """``summary`` (one row), ``candidates``, ``parents``, ``layers`` (a row per layer and parent), ``layer_map``, ``evidence``,
    ``conversion`` (damaged tensors first), and those of `coverage_tables`.
    """
    import pandas

    fit = report.fit
    summary = {
        "model": report.checkpoint.ref,
        "commit": report.checkpoint.commit[:12],
        "verdict": report.verdict,
        "statement": report.statement,
        "best_candidate": report.candidates[0].ref,
        **report.candidates[0].model_dump(include={"equal_share", "equal_by_chance", "distance", "cosine"}),
        **(fit.model_dump(include={"residual", "exact_share", "exact_by_chance"}) if fit else {}),
        "values_compared": report.values_compared,
        "mode": report.mode,
        "coverage": report.covered_share,
    }
    layers = [
        {
            "layer": row.layer,
            "parent": parent.ref,
            "weight": weight,
            "low": low,
            "high": high,
            "residual": row.residual,
            "exact_share": row.exact_share,
        }
        for row in (fit.layers if fit else ())
        for parent, weight, low, high in zip(fit.parents if fit else (), row.weights, row.low, row.high, strict=True)
    ]
    return {
        "summary": pandas.DataFrame([summary]),
        "candidates": frame(report.candidates, Candidate),
        "parents": frame(fit.parents if fit else (), Parent),
        "layers": pandas.DataFrame(layers, columns=["layer", "parent", "weight", "low", "high", "residual", "exact_share"]),
        "layer_map": frame(report.layer_map, MovedLayer),
        "evidence": frame(report.evidence, Evidence),
        "conversion": table(
            (row.model_dump() | {"sources": ", ".join(row.sources)} for row in damage_first(report.conversion)), *Conversion.model_fields
        ),
        **coverage_tables(report.coverage),
    }
