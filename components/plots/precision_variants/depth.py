"""Errors by depth: a line per variant, from the embeddings to the loss, and the same for gradients."""

import math
from typing import TYPE_CHECKING

from components.plots.marks import Series, log_figure
from components.plots.style import exactly
from components.precision.text import layer_name
from components.text import numbers

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from analyzers.precision_variants.report import PrecisionReport
    from analyzers.precision_variants.results import ParameterKind, TensorError


def forward(report: "PrecisionReport") -> "Figure":
    """rms_rel of hidden states by layer, then of the logits and the loss, in percent."""
    return _errors(report, "hidden", ("logits", "loss"))


def backward(report: "PrecisionReport") -> "Figure":
    """rms_rel of the gradients with respect to hidden states and logits, in percent."""
    return _errors(report, "hidden_grad", ("logits_grad",))


def percent(row: "TensorError | ParameterKind") -> float | None:
    """The error in percent; infinite if values are not finite."""
    return math.inf if row.nonfinite else None if row.rms_rel is None else 100 * row.rms_rel


def _errors(report: "PrecisionReport", kind: str, ends: tuple[str, ...]) -> "Figure":
    layers = report.reference.layers
    series = []
    for name, variant in report.variants.items():
        rows = {row.layer: row for row in variant.tensors if row.kind == kind and row.layer is not None}
        rows |= {layers + ends.index(row.kind): row for row in variant.tensors if row.kind in ends}
        by_depth = sorted(rows.items())
        values, details = [percent(row) for _, row in by_depth], [_said(row, layers) for _, row in by_depth]
        series.append(Series(name, [place for place, _ in by_depth], values, details))
    hover = "%{customdata[0]}<br>%{customdata[1]}%{customdata[2]}"
    figure = log_figure(360, "y", series, "relative error (rms), %", hover, "lines+markers")
    every = max(1, -(-layers // 8))
    inside = [layer for layer in range(0, layers, every) if layers - layer >= every]  # the last would overlap the logits
    ticks = [-1, *inside, *range(layers, layers + len(ends))]
    named = {-1: "emb.", layers: "logits", layers + 1: "loss"}
    shown = [named.get(tick, str(tick)) for tick in ticks]
    figure.update_xaxes(title="layer", tickvals=ticks, ticktext=shown, range=[-1.3, layers + len(ends) - 0.7])
    return figure


def _said(row: "TensorError", layers: int) -> list[str]:
    where = layer_name(row.layer, layers) if row.layer is not None else {"loss": "the loss"}.get(row.kind, "the logits")
    if row.nonfinite:
        return [where, f"{row.nonfinite:,} of {row.elements:,} values are not finite", ""]
    spread = "" if row.low is None or row.high is None else f"<br>sequences: {numbers.share(row.low)} to {numbers.share(row.high)}"
    return [where, exactly(row.rms_rel), spread]
