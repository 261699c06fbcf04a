"""Errors in rows: by kind of parameter, by module within layers, and of log-probabilities."""

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

# Measures of the log-probability error d.
DIFFERENCES = ("mean |d|", "max |d|", "|bias|")


def parameters(report: "PrecisionReport") -> "Figure":
    """A row per kind of parameter, a mark per variant: rms_rel of its gradients, in percent."""
    errors = {name: {row.kind: row.rms_rel for row in variant.parameter_kinds} for name, variant in report.variants.items()}
    return _shares(errors, kinds(report))


def inside(report: "PrecisionReport") -> "Figure":
    """A row per module within layers: the median over layers of its rms_rel, in percent."""
    return _modules(report, "inside")


def inside_backward(report: "PrecisionReport") -> "Figure":
    """The same for gradients."""
    return _modules(report, "inside_grad")


def logprobs(report: "PrecisionReport") -> "Figure":
    """A row per variant, a mark per measure, in nats."""
    by_variant = {name: variant.logprobs for name, variant in report.variants.items()}
    measures = (
        {name: each.mean for name, each in by_variant.items()},
        {name: each.max for name, each in by_variant.items()},
        {name: None if each.bias is None else abs(each.bias) for name, each in by_variant.items()},
    )
    return mark_rows(
        dict(zip(DIFFERENCES, measures, strict=True)), list(by_variant), "nats", lambda value: f"{numbers.magnitude(value)} nats", _short
    )


def _modules(report: "PrecisionReport", kind: str) -> "Figure":
    errors: dict[str, dict[str, list[float]]] = {name: {} for name in report.variants}
    for name, variant in report.variants.items():
        for row in variant.tensors:
            if row.kind == kind:
                errors[name].setdefault(row.name, []).extend([] if row.rms_rel is None else [row.rms_rel])
    medians = {name: {module: median(each) if each else None for module, each in rows.items()} for name, rows in errors.items()}
    return _shares(medians, list(dict.fromkeys(module for rows in medians.values() for module in rows)))


def _shares(errors: Mapping[str, Mapping[str, float | None]], names: Sequence[str]) -> "Figure":
    percent = {name: {row: None if error is None else 100 * error for row, error in rows.items()} for name, rows in errors.items()}
    return mark_rows(percent, names, "relative error (rms), %", lambda value: exactly(value / 100), _short)


def _short(name: str) -> str:
    """Without the usual prefix and suffix."""
    return name.removesuffix(".weight").removeprefix("model.")
