"""Draws several models in one figure: among labelled models, their spectra, and their layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import plotly.graph_objects as go

from analyzers.dtype_detection import DtypeReport
from components.dtype.labelled_models_plot import among_models
from components.plots.marks import line, shortened
from components.plots.style import COLOURS, layout, legend, log_axis
from components.text import numbers

# As many models as there are colours, since further lines could not be told apart.
MOST = len(COLOURS)
_NAME = 34


def spectra(reports: Sequence[DtypeReport], rows: Sequence[int]) -> go.Figure:
    """Draw the share of the values read in each binade, a line for each of the first ``MOST`` models."""
    figure = go.Figure(layout=layout(380))
    drawn = [(row, report) for row, report in zip(rows, reports, strict=True) if report.exponents][:MOST]
    exponents = sorted({item.exponent for _, report in drawn for item in report.exponents})
    for index, (row, report) in enumerate(drawn):
        total = sum(item.count for item in report.exponents)
        shares = {item.exponent: 100 * item.count / total for item in report.exponents}
        x = list(range(exponents[0], exponents[-1] + 1))
        details = [[numbers.power(exponent), numbers.power(exponent + 1)] for exponent in x]
        hover = "from %{customdata[0]} to %{customdata[1]}<br>%{y:.4g}%"
        y = [shares.get(exponent, 0.0) for exponent in x]
        figure.add_trace(line(_name(row, report), [each + 0.5 for each in x], y, index, hover, details, mode="lines"))
    if exponents:
        spacing = 8 * max(1, math.ceil((exponents[-1] - exponents[0]) / 64))
        ticks = list(range(math.ceil(exponents[0] / spacing) * spacing, exponents[-1] + 1, spacing))
        figure.update_xaxes(tickvals=ticks, ticktext=[numbers.power(tick) for tick in ticks])
    figure.update_xaxes(title="weight magnitude")
    figure.update_yaxes(title="% of the values read", rangemode="tozero")
    legend(figure, toggle=True)
    return figure


def largest(reports: Sequence[DtypeReport], rows: Sequence[int]) -> go.Figure:
    """Draw the largest magnitude in each layer, a line for each of the first ``MOST`` models."""
    figure = go.Figure(layout=layout(350))
    sizes: list[float] = []
    for index, (row, report) in enumerate(list(zip(rows, reports, strict=True))[:MOST]):
        magnitudes: dict[int, float] = {}
        for each in report.layers:
            if each.layer is not None and each.abs_max:
                magnitudes[each.layer] = max(each.abs_max, magnitudes.get(each.layer, 0.0))
        layers = sorted(magnitudes)
        values = [magnitudes[layer] for layer in layers]
        sizes += values
        hover = "layer %{x}<br>largest %{customdata[0]}"
        figure.add_trace(line(_name(row, report), layers, values, index, hover, [[f"{value:.6g}"] for value in values]))
    low, high = math.log10(min(sizes, default=1e-2)) - 0.3, math.log10(max(sizes, default=1.0)) + 0.3
    last = max((each.layer for report in reports for each in report.layers if each.layer is not None), default=0)
    figure.update_xaxes(title="layer", dtick=max(1, math.ceil((last + 1) / 6)), tick0=0)
    figure.update_yaxes(title="largest magnitude", **log_axis(low, high))
    legend(figure, toggle=True)
    return figure


def _name(row: int, report: DtypeReport) -> str:
    return f"{row} {shortened(report.checkpoint.ref, _NAME)}"


_FIRST = f" Of more than {MOST} models, the first {MOST}."
# Tab, title of the figure, the sentence above it, and the function that draws it from the reports and their row numbers.
FIGURES: Sequence[tuple[str, str, str, Callable[[Sequence[DtypeReport], Sequence[int]], go.Figure]]] = (
    (
        "Among models",
        "Among models of known training precision",
        "Numbered stars are these models, by their rows above; each point is a model whose training precision is known. "
        "Dashed: the thresholds of the rule of thumb.",
        among_models,
    ),
    ("Spectra", "Spectra of the models", f"Distribution of weight magnitudes, over the values read of each model.{_FIRST}", spectra),
    ("Layers", "Largest magnitude by layer, of each model", f"The largest weight magnitude in each layer.{_FIRST}", largest),
)
