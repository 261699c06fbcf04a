"""Draws the figures of precision variants: errors by depth, headroom, log-probabilities, and an engine's."""

from __future__ import annotations

import math

import plotly.graph_objects as go

from analyzers.numerics import formats
from analyzers.precision.measurements import TensorError, short_layer
from analyzers.precision.report import PrecisionReport
from components.plots.marks import line, log_scale, mark_rows
from components.plots.style import GREY, exactly, label, layout, legend, level, text
from components.text import numbers

# Measures of the difference d of log-probabilities.
_DIFFERENCES = ("mean |d|", "max |d|", "|bias|")


def forward(report: PrecisionReport) -> go.Figure | None:
    """Draw rms_rel of hidden states by layer, then of the logits and the loss, in percent."""
    return _errors(report, "hidden", ("logits", "loss"))


def backward(report: PrecisionReport) -> go.Figure | None:
    """Draw rms_rel of the gradients with respect to hidden states and logits, in percent."""
    return _errors(report, "hidden_grad", ("logits_grad",))


def _percent(row: TensorError) -> float | None:
    """Return the error in percent; infinite if values are not finite."""
    return math.inf if row.nonfinite else None if row.rms_rel is None else 100 * row.rms_rel


def _errors(report: PrecisionReport, kind: str, ends: tuple[str, ...]) -> go.Figure | None:
    layers = report.reference.layers
    curves: dict[str, list[tuple[int, TensorError]]] = {}
    for name, variant in report.variants.items():
        rows = [(row.layer, row) for row in variant.tensors if row.kind == kind and row.layer is not None]
        rows += [(layers + ends.index(row.kind), row) for row in variant.tensors if row.kind in ends]
        curves[name] = sorted(rows, key=lambda row: row[0])
    if not any(curves.values()):
        return None
    figure = go.Figure(layout=layout(360))
    values = [_percent(row) for rows in curves.values() for _, row in rows]
    at = log_scale(figure, "y", values, "relative error (rms), %")
    hover = "%{customdata[0]}<br>%{customdata[1]}"
    for style, (name, rows) in enumerate(curves.items()):
        details = [[_place_name(place, layers), _amount(row)] for place, row in rows]
        figure.add_trace(
            line(name, [_at(place, layers) for place, _ in rows], [at(_percent(row)) for _, row in rows], style, hover, details)
        )
    names = {-1: "emb.", layers: "logits", layers + 1: "loss"}
    return legend(_layer_axis(figure, layers, [*range(layers, layers + len(ends))], names))


def _amount(row: TensorError) -> str:
    return f"{numbers.plural(row.nonfinite, 'value')} not finite" if row.nonfinite else exactly(row.rms_rel)


def _place_name(place: int, layers: int) -> str:
    return {-1: "the embeddings", layers: "the logits", layers + 1: "the loss"}.get(place, f"layer {place}")


def _at(place: int, layers: int) -> float:
    """Return the position of a layer. The embedding and the head are set apart, so that their names fit on a narrow screen."""
    apart = max(1.0, layers / 4)
    return -apart if place < 0 else place if place < layers else layers - 1 + apart * (place - layers + 1)


def _layer_axis(figure: go.Figure, layers: int, ends: list[int], names: dict[int, str]) -> go.Figure:
    """Set the axis of layers, with ticks at some of them, at the embeddings and at what follows the layers (``ends``)."""
    every = max(1, -(-layers // 8))
    places = [-1, *(layer for layer in range(0, layers, every) if layer == 0 or layers - layer >= every), *ends]
    first, last = _at(-1, layers), _at(ends[-1], layers)
    beyond = (last - first) / 16
    ticks = [names.get(place, short_layer(place)) for place in places]
    tickvals = [_at(place, layers) for place in places]
    return figure.update_xaxes(title="layer", tickvals=tickvals, ticktext=ticks, range=[first - beyond, last + beyond])


def headroom(report: PrecisionReport) -> go.Figure | None:
    """Draw log2 of the largest |x| of each layer of the reference: activations, gradients and weights, with the limit of fp16."""
    rows, layers = report.reference.headroom, report.reference.layers
    if not rows:
        return None
    figure = go.Figure(layout=layout(360))
    limit = math.log2(formats.FP16.largest)
    heights = [limit]
    hover = "%{customdata[0]}<br>largest %{customdata[1]} in %{customdata[2]}<br>fp16 headroom: %{customdata[3]}"
    for style, (name, side) in enumerate({"values": "forward", "gradients": "backward", "weights": "weights"}.items()):
        levels, details = [], []
        for row in rows:
            largest, bits = getattr(row, f"{side}_max"), getattr(row, side)
            levels.append(math.log2(largest) if largest else None)
            place = "the head" if row.layer == layers else _place_name(row.layer, layers)
            left = numbers.NOTHING if bits is None else f"{bits:+.1f} bits"
            details.append([place, numbers.magnitude(largest), text(getattr(row, f"{side}_at") or ""), left])
        heights += [height for height in levels if height is not None]
        figure.add_trace(line(name, [_at(row.layer, layers) for row in rows], levels, style, hover, details))
    level(figure, limit, "fp16 limit, 65504")
    low, high = min(heights) - 1, max(heights) + 2
    step = max(1, round((high - low) / 6))
    ticks = list(range(math.ceil(low / step) * step, math.floor(high) + 1, step))
    figure.update_yaxes(title="largest |x|", range=[low, high], tickvals=ticks, ticktext=[numbers.power(tick) for tick in ticks])
    return legend(_layer_axis(figure, layers, [layers], {-1: "emb.", layers: "head"}))


def logprobs(report: PrecisionReport) -> go.Figure | None:
    """Draw the measures of the log-probability error in nats: a row per variant, a mark per measure."""
    variants = report.variants
    measures: tuple[dict[str, float | None], ...] = (
        {name: variant.summary.logprob_mean for name, variant in variants.items()},
        {name: variant.summary.logprob_max for name, variant in variants.items()},
        {name: None if (bias := variant.logprobs.bias) is None else abs(bias) for name, variant in variants.items()},
    )
    if all(value is None for rows in measures for value in rows.values()):
        return None
    measured = dict(zip(_DIFFERENCES, measures, strict=True))
    return mark_rows(measured, list(variants), "nats", lambda value: f"{numbers.magnitude(value)} nats")


def tokens(report: PrecisionReport) -> go.Figure | None:
    """Draw log p - log p of the reference for each token, of the bf16 run and of the engine. The band holds 99% of the bf16 run's."""
    if (engine := report.engine) is None:
        return None
    figure = go.Figure(layout=layout(360))
    known = [(row, row.engine) for row in engine.tokens if row.engine is not None]
    curves = {"bf16 run": [row.bf16 - row.reference for row, _ in known], "engine": [logprob - row.reference for row, logprob in known]}
    hover = "%{customdata[0]}<br>log p in fp32: %{x:.4g}<br>difference: %{y:+.3g} nats"
    details = [[f"{text(repr(row.text)) if row.text else row.token}, token {row.position} of sequence {row.sequence}"] for row, _ in known]
    for style, (name, differences) in enumerate(curves.items()):
        trace = line(name, [row.reference for row, _ in known], differences, style, hover, details, mode="markers")
        figure.add_trace(trace.update(marker={"size": 5, "opacity": 0.7}))
    band = engine.bf16.p99
    figure.add_hrect(y0=-band, y1=band, fillcolor=GREY, opacity=0.18, line_width=0, layer="below")
    label(figure, "99% of the bf16 run", xref="paper", x=1, xanchor="right", y=band, yanchor="bottom")
    figure.update_xaxes(title="log p in fp32, nats")
    return legend(figure.update_yaxes(title="difference from fp32, nats"))
