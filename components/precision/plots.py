"""Draws the figures of precision variants: errors by depth, by kind of parameter and module, headroom, log-probabilities."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from statistics import median

import plotly.graph_objects as go

from analyzers.numerics import formats
from analyzers.precision_variants.measurements import TensorError, short_layer
from analyzers.precision_variants.report import PrecisionReport
from components.plots.marks import Series, line, log_figure, mark_rows
from components.plots.style import LIMIT, exactly, label, layout, level, text
from components.text import numbers


def forward(report: PrecisionReport) -> go.Figure:
    """Draw rms_rel of hidden states by layer, then of the logits and the loss, in percent."""
    return _errors(report, "hidden", ("logits", "loss"))


def backward(report: PrecisionReport) -> go.Figure:
    """Draw rms_rel of the gradients with respect to hidden states and logits, in percent."""
    return _errors(report, "hidden_grad", ("logits_grad",))


def percent(row: TensorError) -> float | None:
    """Return the error in percent; infinite if values are not finite."""
    return math.inf if row.nonfinite else None if row.rms_rel is None else 100 * row.rms_rel


def _errors(report: PrecisionReport, kind: str, ends: tuple[str, ...]) -> go.Figure:
    layers = report.reference.layers
    series = []
    for name, variant in report.variants.items():
        rows = {row.layer: row for row in variant.tensors if row.kind == kind and row.layer is not None}
        rows |= {layers + ends.index(row.kind): row for row in variant.tensors if row.kind in ends}
        by_depth = sorted((_at(place, layers), row) for place, row in rows.items())
        values, details = [percent(row) for _, row in by_depth], [_said(row, layers) for _, row in by_depth]
        series.append(Series(name, [place for place, _ in by_depth], values, details))
    hover = "%{customdata[0]}<br>%{customdata[1]}"
    figure = log_figure(360, "y", series, "relative error (rms), %", hover, "lines+markers")
    every = max(1, -(-layers // 8))
    inside = [layer for layer in range(0, layers, every) if layers - layer >= every]  # a later label would overlap that of the logits
    places = [-1, *inside, *range(layers, layers + len(ends))]
    named = {-1: "emb.", layers: "logits", layers + 1: "loss"}
    ticks = [_at(place, layers) for place in places]
    shown = [named.get(place, str(place)) for place in places]
    figure.update_xaxes(title="layer", tickvals=ticks, ticktext=shown, range=_ends(layers, layers + len(ends) - 1))
    return figure


def _at(place: int, layers: int) -> float:
    """Return the position of a layer. The embedding and the head are set apart, so that their names fit on a narrow screen."""
    apart = max(1.0, layers / 4)
    return -apart if place < 0 else place if place < layers else layers - 1 + apart * (place - layers + 1)


def _ends(layers: int, last: int) -> list[float]:
    """Return the ends of the axis of layers, of which ``last`` is the last place."""
    first, end = _at(-1, layers), _at(last, layers)
    beyond = (end - first) / 16
    return [first - beyond, end + beyond]


def _said(row: TensorError, layers: int) -> list[str]:
    where = _layer_name(row.layer, layers) if row.layer is not None else {"loss": "the loss"}.get(row.kind, "the logits")
    return [where, f"{numbers.plural(row.nonfinite, 'value')} not finite" if row.nonfinite else exactly(row.rms_rel)]


def _layer_name(layer: int, layers: int) -> str:
    return "the embeddings" if layer < 0 else "the head" if layer >= layers else f"layer {layer}"


# log2 of the largest finite value of each format.
FP16, BF16 = math.log2(formats.FP16.largest), math.log2(formats.BF16.largest)
# Shares of the height below and above the break of the axis, which lies between the limits of fp16 and bf16.
_BELOW, _ABOVE = (0.0, 0.86), (0.93, 1.0)
# Name of each line -> its field in the report.
SIDES = {"values": "forward", "gradients": "backward", "weights": "weights"}


def headroom(report: PrecisionReport) -> go.Figure:
    """Draw log2 of the largest |x| of each layer of the reference: activations, gradients and weights."""
    rows, layers = report.reference.headroom, report.reference.layers
    figure = go.Figure(layout=layout(360))
    heights = [FP16]
    hover = "%{customdata[0]}<br>largest %{customdata[1]} in %{customdata[2]}<br>fp16 headroom: %{customdata[3]}"
    for index, (name, side) in enumerate(SIDES.items()):
        largest = [getattr(row, f"{side}_max") for row in rows]
        levels = [math.log2(value) if value else None for value in largest]
        heights += [each for each in levels if each is not None]
        details = [
            [
                _layer_name(row.layer, layers),
                numbers.magnitude(value),
                text(getattr(row, f"{side}_at") or ""),
                "" if (bits := getattr(row, side)) is None else f"{bits:+.1f} bits",
            ]
            for row, value in zip(rows, largest, strict=True)
        ]
        figure.add_trace(line(name, [_at(row.layer, layers) for row in rows], levels, index, hover, details))
    ends = _ends(layers, layers)
    figure.add_trace(go.Scatter(x=ends, y=[BF16] * 2, yaxis="y2", mode="lines", line=LIMIT, hoverinfo="skip", showlegend=False))
    level(figure, FP16, "fp16 limit, 65504")
    right = {"xref": "paper", "x": 1, "xanchor": "right"}
    label(figure, "bf16 limit, 112 bits higher", yref="y2", y=BF16, yanchor="top", yshift=-2, **right)
    low, high = min(heights) - 1, max(heights) + 2
    step = max(1, round((high - low) / 6))
    ticks = list(range(math.ceil(low / step) * step, math.floor(high) + 1, step))
    powers = [numbers.power(tick) for tick in ticks]
    figure.update_yaxes(title="largest |x|", range=[low, high], domain=_BELOW, tickvals=ticks, ticktext=powers)
    above = {"anchor": "x", "domain": _ABOVE, "range": [BF16 - 3, BF16 + 1], "tickvals": [128], "ticktext": [numbers.power(128)]}
    figure.update_layout(yaxis2=above | {"fixedrange": True, "showgrid": False, "zeroline": False, "tickfont": {"size": 11}})
    places = [-1, *range(0, layers, max(1, -(-layers // 8))), layers]
    names = ["head" if place == layers else short_layer(place) for place in places]
    figure.update_xaxes(title="layer", range=ends, tickvals=[_at(place, layers) for place in places], ticktext=names)
    return figure


_IN_LAYER = re.compile(r"^.*?\.\d+\.(?=\D)")  # What precedes the name of a parameter within its layer.
# Measures of the log-probability error d.
DIFFERENCES = ("mean |d|", "max |d|", "|bias|")


def parameters(report: PrecisionReport) -> go.Figure:
    """Draw the median over layers of rms_rel of parameters' gradients in percent: a row per parameter of a layer."""
    return _modules(report, "parameter_grad")


def inside(report: PrecisionReport) -> go.Figure:
    """Draw the median over layers of rms_rel of activations in percent: a row per module within layers."""
    return _modules(report, "inside")


def inside_backward(report: PrecisionReport) -> go.Figure:
    """Draw the median over layers of rms_rel of gradients in percent: a row per module within layers."""
    return _modules(report, "inside_grad")


def logprobs(report: PrecisionReport) -> go.Figure:
    """Draw the measures of the log-probability error in nats: a row per variant, a mark per measure."""
    measures: tuple[dict[str, float | None], ...] = (
        {name: variant.summary.logprob_mean for name, variant in report.variants.items()},
        {name: variant.summary.logprob_max for name, variant in report.variants.items()},
        {name: None if (bias := variant.logprobs.bias) is None else abs(bias) for name, variant in report.variants.items()},
    )
    errors = dict(zip(DIFFERENCES, measures, strict=True))
    return mark_rows(errors, list(report.variants), "nats", lambda value: f"{numbers.magnitude(value)} nats", _short)


def _modules(report: PrecisionReport, kind: str) -> go.Figure:
    """Draw the median over layers of a module's rms_rel in percent, in which layers that overflow count as infinite."""
    errors: dict[str, dict[str, list[float]]] = {name: {} for name in report.variants}
    modules: dict[str, None] = {}
    for name, variant in report.variants.items():
        for row in sorted((row for row in variant.tensors if row.kind == kind), key=lambda row: -1 if row.layer is None else row.layer):
            modules.setdefault(module := _IN_LAYER.sub("", row.name) if kind == "parameter_grad" else row.name)
            if (error := percent(row)) is not None:
                errors[name].setdefault(module, []).append(error)
    return _rows({name: {module: median(each) for module, each in rows.items()} for name, rows in errors.items()}, list(modules))


def _rows(errors: Mapping[str, Mapping[str, float | None]], names: Sequence[str]) -> go.Figure:
    return mark_rows(errors, names, "relative error (rms), %", lambda value: exactly(value / 100), _short)


def _short(name: str) -> str:
    """Remove the usual prefix and suffix of a name."""
    return name.removesuffix(".weight").removeprefix("model.")
