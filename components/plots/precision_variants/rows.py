"""Errors in rows: by kind of parameter, by module within layers, and of log-probabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

import plotly.graph_objects as go

from analyzers.precision_variants.report import PrecisionReport
from components.plots.marks import mark_rows
from components.plots.precision_variants.depth import percent
from components.plots.style import exactly
from components.precision.tables import kinds
from components.text import numbers

# Measures of the log-probability error d.
DIFFERENCES = ("mean |d|", "max |d|", "|bias|")


def parameters(report: PrecisionReport) -> go.Figure:
    """A row per kind of parameter, a mark per variant: rms_rel of its gradients, in percent."""
    return _rows({name: {row.kind: percent(row) for row in each.parameter_kinds} for name, each in report.variants.items()}, kinds(report))


def inside(report: PrecisionReport) -> go.Figure:
    """A row per module within layers: the median over layers of its rms_rel, in percent."""
    return _modules(report, "inside")


def inside_backward(report: PrecisionReport) -> go.Figure:
    """The same for gradients."""
    return _modules(report, "inside_grad")


def logprobs(report: PrecisionReport) -> go.Figure:
    """A row per variant, a mark per measure, in nats."""
    rows = {name: variant.logprobs for name, variant in report.variants.items()}
    measures: tuple[dict[str, float | None], ...] = (
        {name: row.mean for name, row in rows.items()},
        {name: row.max for name, row in rows.items()},
        {name: None if row.bias is None else abs(row.bias) for name, row in rows.items()},
    )
    found = dict(zip(DIFFERENCES, measures, strict=True))
    return mark_rows(found, list(rows), "nats", lambda value: f"{numbers.magnitude(value)} nats", _short)


def _modules(report: PrecisionReport, kind: str) -> go.Figure:
    """Layers that overflow count as infinite in the median."""
    errors: dict[str, dict[str, list[float]]] = {name: {} for name in report.variants}
    for name, variant in report.variants.items():
        for row in variant.tensors:
            if row.kind == kind and (error := percent(row)) is not None:
                errors[name].setdefault(row.name, []).append(error)
    medians = {name: {module: median(each) for module, each in rows.items()} for name, rows in errors.items()}
    return _rows(medians, list(dict.fromkeys(row.name for each in report.variants.values() for row in each.tensors if row.kind == kind)))


def _rows(errors: Mapping[str, Mapping[str, float | None]], names: Sequence[str]) -> go.Figure:
    return mark_rows(errors, names, "relative error (rms), %", lambda value: exactly(value / 100), _short)


def _short(name: str) -> str:
    """Without the usual prefix and suffix."""
    return name.removesuffix(".weight").removeprefix("model.")
