"""Errors in rows: of each kind of parameter, of each module within layers, and of log-probabilities."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

from components.plots.mark_rows import mark_rows
from components.plots.style import exactly
from components.precision.tables import kinds
from components.text import numbers

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from analyzers.precision_variants.report import PrecisionReport

# Measures of the differences of log-probabilities.
DIFFERENCES = ("mean |d|", "largest |d|", "|bias|")


def parameters(report: "PrecisionReport") -> "Figure":
    """A row for each kind of parameter, a mark for each variant: rms_rel of its gradients, in percent."""
    found = {name: {row.kind: row.rms_rel for row in variant.parameter_kinds} for name, variant in report.variants.items()}
    return _shares(found, kinds(report))


def inside(report: "PrecisionReport") -> "Figure":
    """A row for each module within layers: the median over layers of its rms_rel, in percent."""
    return _modules(report, "inside")


def inside_backward(report: "PrecisionReport") -> "Figure":
    """The same of gradients."""
    return _modules(report, "inside_grad")


def logprobs(report: "PrecisionReport") -> "Figure":
    """A row for each variant, a mark for each measure of the differences, in nats."""
    of = {name: variant.logprobs for name, variant in report.variants.items()}
    measures = (
        {name: each.mean for name, each in of.items()},
        {name: each.max for name, each in of.items()},
        {name: None if each.bias is None else abs(each.bias) for name, each in of.items()},
    )
    found = dict(zip(DIFFERENCES, measures, strict=True))
    return mark_rows(found, list(of), "nats", lambda value: f"{numbers.magnitude(value)} nats", _short)


def _modules(report: "PrecisionReport", kind: str) -> "Figure":
    errors: dict[str, dict[str, list[float]]] = {name: {} for name in report.variants}
    for name, variant in report.variants.items():
        for row in variant.tensors:
            if row.kind == kind:
                errors[name].setdefault(row.name, []).extend([] if row.rms_rel is None else [row.rms_rel])
    found = {name: {module: median(each) if each else None for module, each in rows.items()} for name, rows in errors.items()}
    return _shares(found, list(dict.fromkeys(module for rows in found.values() for module in rows)))


def _shares(found: Mapping[str, Mapping[str, float | None]], names: Sequence[str]) -> "Figure":
    percent = {name: {row: None if error is None else 100 * error for row, error in rows.items()} for name, rows in found.items()}
    return mark_rows(percent, names, "error (rms), %", lambda value: exactly(value / 100), _short)


def _short(name: str) -> str:
    """Without what most names begin and end with."""
    return name.removesuffix(".weight").removeprefix("model.")
