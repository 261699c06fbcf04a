"""Draws the figures of dtype detection: weight magnitudes and the limits of each format, and the reliability of the classifier."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import plotly.graph_objects as go

from analyzers.core.tensor_words import layer_name
from analyzers.dtype_detection import DtypeReport
from analyzers.dtype_detection.classifier_evaluation import Evaluation
from analyzers.dtype_detection.report import LayerRow, step_name
from analyzers.numerics import BF16, FP8_E4M3, FP16
from components.plots import style
from components.plots.marks import line
from components.plots.style import COLOURS, GREY, LIMIT, label, layout, legend, level, log_axis, threshold
from components.text import numbers


class Mark(NamedTuple):
    """The name of a format's limit and its position on a log2 axis."""

    log2: float
    name: str


def marks(report: DtypeReport) -> tuple[Mark, ...]:
    """Return the limits drawn in the spectrum, in ascending order."""
    named = [
        Mark(math.log2(BF16.smallest_normal), f"bf16 smallest normal {numbers.power(-126)}"),
        Mark(math.log2(FP16.smallest_subnormal), f"fp16 smallest subnormal {numbers.power(-24)}"),
        Mark(math.log2(FP16.smallest_normal), f"fp16 smallest normal {numbers.power(-14)}"),
        Mark(math.log2(FP8_E4M3.smallest_normal), f"fp8 e4m3 normal {numbers.power(-6)}"),
        Mark(math.log2(FP8_E4M3.largest), "fp8 e4m3 largest 448"),
        Mark(math.log2(FP16.largest), "fp16 largest 65504"),
        Mark(math.log2(BF16.largest), "bf16 largest 3.39e38"),
    ]
    low, high = _range(report)
    return tuple(mark for mark in named if low <= mark.log2 <= high)


def spectrum(report: DtypeReport) -> go.Figure:
    """Draw a histogram of the exponents of the values read, with the limits of fp16, fp8 and bf16 if they are near.

    A menu switches the axis from linear to logarithmic, which also shows small bars.
    """
    total = sum(item.count for item in report.exponents)
    exponents = [item.exponent for item in report.exponents]
    shares = [100 * item.count / total for item in report.exponents]
    bars = go.Bar(
        x=[exponent + 0.5 for exponent in exponents],
        y=shares,
        width=0.86,
        marker={"color": COLOURS[0]},
        customdata=[
            [numbers.power(e), numbers.power(e + 1), f"{item.count:,}"] for e, item in zip(exponents, report.exponents, strict=True)
        ],
        hovertemplate="from %{customdata[0]} to %{customdata[1]}<br>%{customdata[2]} values<br>%{y:.4g}%<extra></extra>",
    )
    low, high = _range(report)
    drawn = marks(report)
    figure = go.Figure([bars], layout(400))
    # One line of text per mark, stacked above the bars so that names do not collide on a narrow screen. Outermost first, because names
    # point inwards and a mark ends at its name.
    left = [mark for mark in drawn if mark.log2 < low + 0.5 * (high - low)]
    for number, mark in enumerate([*left, *reversed(drawn[len(left) :])]):
        threshold(figure, mark.log2, 1 - 0.42 * number / len(drawn), mark.name, right=mark in left)
    spacing = 8 if high - low <= 80 else 32
    ticks = list(range(math.ceil(low / spacing) * spacing, math.floor(high) + 1, spacing))
    figure.update_xaxes(title="weight magnitude", range=[low, high], tickvals=ticks, ticktext=[numbers.power(tick) for tick in ticks])
    _add_scales(figure, shares or [1.0])
    return figure


def _add_scales(figure: go.Figure, shares: list[float]) -> None:
    """Add the vertical axis for ``shares``, with space for names above the bars, and a menu of its scales."""
    linear = {"type": "linear", "range": [0, 1.8 * max(shares)], "tickmode": "auto", "nticks": 5}
    low, high = math.log10(min(shares)) - 0.3, math.log10(max(shares))
    ticks = [10.0**exponent for exponent in range(math.ceil(low), 3, max(1, math.ceil((high - low) / 5)))]
    log = {"type": "log", "range": [low, low + 1.8 * (high - low + 0.3)], "tickmode": "array", "tickvals": ticks}
    log |= {"exponentformat": "power"}
    figure.update_yaxes(title="% of the values read", **linear)
    buttons = [
        {"label": name, "method": "relayout", "args": [{f"yaxis.{key}": value for key, value in scale.items()}]}
        for name, scale in (("linear scale", linear), ("logarithmic scale", log))
    ]
    menu = {"buttons": buttons, "bgcolor": "rgba(0,0,0,0)", "bordercolor": GREY, "font": {"size": 11}}
    figure.update_layout(updatemenus=[menu | {"x": 1, "xanchor": "right", "y": 1, "yanchor": "bottom", "pad": {"b": 4}}], margin_t=44)


def layers(report: DtypeReport) -> go.Figure:
    """Draw the largest magnitude in each layer, one trace per role, with the largest fp16 value."""
    figure = go.Figure(layout=layout(350))
    highest = max((row.layer for row in report.layers if row.layer is not None), default=0)
    spacing = max(1, math.ceil((highest + 1) / 6))
    # far enough from layer 0 that the labels do not overlap, for any number of layers
    outside = -spacing
    for index, (role, rows) in enumerate(_by_role(report)):
        # tensors outside the layers are not adjacent to layer 0: the gap prevents a connecting line
        points: list[LayerRow | None] = [*[row for row in rows if row.layer is None], None, *[row for row in rows if row.layer is not None]]
        x = [None if row is None else outside if row.layer is None else row.layer for row in points]
        details = [
            None if row is None else [layer_name(row.layer), _number(row.abs_max), _number(row.rms), f"{row.tensors:,}"] for row in points
        ]
        hover = "%{customdata[0]}<br>largest %{customdata[1]}<br>rms %{customdata[2]}<br>tensors: %{customdata[3]}"
        mode = {} if len(rows) > 1 else {"mode": "markers"}
        figure.add_trace(line(role, x, [None if row is None else row.abs_max for row in points], index, hover, details, **mode))
    ticks = [outside] * any(row.layer is None for row in report.layers) + list(range(0, highest + 1, spacing))
    level(figure, FP16.largest, "fp16 largest 65504", height=math.log10(FP16.largest))
    shown = [row.abs_max for row in report.layers if row.abs_max]
    low, high = math.log10(min(shown, default=1e-2)) - 0.4, math.log10(max([*shown, FP16.largest])) + 0.6
    figure.update_xaxes(title="layer", tickvals=ticks, ticktext=["no layer" if tick < 0 else str(tick) for tick in ticks])
    figure.update_yaxes(title="largest magnitude", **log_axis(low, high))
    legend(figure, toggle=True)
    return figure


# Typical learning rates under Adam, which are about the size of a step.
_RATES = {1e-6: "RL", 1e-5: "fine-tuning", 3e-4: "pretraining"}


def movable(report: DtypeReport) -> go.Figure:
    """Draw the share of each role's weights that a step can move in pure bf16 training, against the size of the step.

    A dotted line is the share of all weights that a step with fp32 master weights changes in bf16.
    """
    found = report.movable
    assert found is not None
    figure = go.Figure(layout=layout(350))
    curves = {role: [1 - frozen for frozen in shares] for role, shares in found.roles.items()}
    curves["fp32 masters, all weights"] = list(found.expected_flips)
    for index, (name, shares) in enumerate(curves.items()):
        details = [[numbers.share(each)] for each in shares]
        figure.add_trace(line(name, found.steps, [100 * each for each in shares], index, "step %{x:g}<br>moved: %{customdata[0]}", details))
    # above the curves, the largest first: a name points left, where the lines of smaller rates end below it
    for number, (rate, name) in enumerate(reversed(_RATES.items())):
        top = 1 - 0.08 * number
        figure.add_shape(type="line", yref="paper", x0=rate, x1=rate, y0=0, y1=top, line=LIMIT)
        place = {"x": math.log10(rate), "xanchor": "right", "xshift": -4, "yref": "paper", "y": top, "yanchor": "top"}
        label(figure, f"{name} {step_name(rate)}", **place)
    axis = log_axis(math.log10(found.steps[0]), math.log10(found.steps[-1]))
    ticks = {"tickvals": [10.0**exponent for exponent in range(-8, -1)], "ticktext": [numbers.power(e, 10) for e in range(-8, -1)]}
    figure.update_xaxes(title="update size (about the learning rate)", **axis | ticks)
    figure.update_yaxes(title="% of the weights that move", range=[-2, 138], tickvals=[0, 25, 50, 75, 100])
    legend(figure, toggle=True)
    return figure


def _range(report: DtypeReport) -> tuple[float, float]:
    """Return the exponent range to draw: all that occur and the fp16 range, so that unused exponents are visible."""
    exponents = [item.exponent for item in report.exponents]
    return min(-26, min(exponents, default=0) - 1), max(18, max(exponents, default=0) + 2)


def _by_role(report: DtypeReport) -> Iterator[tuple[str, list[LayerRow]]]:
    roles = dict.fromkeys(row.role for row in report.layers)
    for role in roles:
        rows = [row for row in report.layers if row.role == role and row.abs_max]
        if rows:
            yield role, sorted(rows, key=lambda row: -1 if row.layer is None else row.layer)


def _number(value: float | None) -> str:
    return numbers.NOTHING if value is None else repr(value)


def reliability(evaluation: Evaluation) -> go.Figure:
    """Draw the mean predicted probability against the observed frequency, a point per bin; a calibrated classifier is on the diagonal.

    A point's area is proportional to the number of predictions in its bin, which is written next to it.
    """
    bins = evaluation.reliability
    most = max((each.predictions for each in bins), default=1)
    dashed = {"color": style.GREY, "dash": "dash", "width": 1.2}
    diagonal = go.Scatter(x=[0, 100], y=[0, 100], mode="lines", line=dashed, hoverinfo="skip", name="as promised")
    points = go.Scatter(
        x=[100 * each.mean for each in bins],
        y=[100 * each.share for each in bins],
        mode="markers+text",
        name="out of fold",
        marker={
            "color": style.COLOURS[0],
            "size": [each.predictions for each in bins],
            "sizemode": "area",
            "sizeref": 2 * most / 26**2,
            "sizemin": 5,
        },
        text=[f"{each.predictions}" for each in bins],
        textposition=["top center" if each.share < 0.9 else "bottom center" for each in bins],
        cliponaxis=False,
        customdata=[
            [numbers.share(each.low), numbers.share(each.high), numbers.plural(each.predictions, "prediction"), numbers.share(each.share)]
            for each in bins
        ],
        hovertemplate="%{customdata[2]} from %{customdata[0]} to %{customdata[1]}<br>mean %{x:.3g}%<br>came true: %{customdata[3]}"
        "<extra></extra>",
    )
    figure = go.Figure([diagonal, points], style.layout(380))
    ticks = [0, 20, 40, 60, 80, 100]
    figure.update_xaxes(title="predicted probability, %", range=[-4, 104], tickvals=ticks)
    figure.update_yaxes(title="came true, %", range=[-4, 112], tickvals=ticks)
    return figure
