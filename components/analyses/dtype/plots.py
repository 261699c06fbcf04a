"""Draws the figures of the passport: weight magnitudes and the limits of the formats, layers, movable weights, and labelled models."""

from __future__ import annotations

import math

import plotly.graph_objects as go

from analyzers.core.tensor_words import layer_name
from analyzers.dtype import DtypeReport
from analyzers.dtype.labelled_models import labelled_extremes
from analyzers.dtype.report import step_name
from analyzers.dtype.training_precision import PUBLISHED
from analyzers.numerics import BF16, FP8_E4M3, FP16
from components.plots.marks import line
from components.plots.style import COLOURS, GREY, LIMIT, MARKERS, above, layout, legend, level, log_axis, text, threshold
from components.text import numbers

# Limits of the formats, in ascending order.
_MARKS = (
    (BF16.smallest_normal, f"bf16 smallest normal {numbers.power(-126)}"),
    (FP16.smallest_subnormal, f"fp16 smallest subnormal {numbers.power(-24)}"),
    (FP16.smallest_normal, f"fp16 smallest normal {numbers.power(-14)}"),
    (FP8_E4M3.smallest_normal, f"fp8 e4m3 normal {numbers.power(-6)}"),
    (FP8_E4M3.largest, "fp8 e4m3 largest 448"),
    (FP16.largest, "fp16 largest 65504"),
    (BF16.largest, "bf16 largest 3.39e38"),
)


def spectrum(report: DtypeReport) -> go.Figure | None:
    """Draw a histogram of the exponents of the values read, with the limits of fp16, fp8 and bf16 if they are near."""
    if not report.exponents:
        return None
    total = sum(row.count for row in report.exponents)
    shares = [100 * row.count / total for row in report.exponents]
    bars = go.Bar(
        x=[row.exponent + 0.5 for row in report.exponents],
        y=shares,
        width=0.86,
        marker={"color": COLOURS[0]},
        customdata=[[numbers.power(row.exponent), numbers.power(row.exponent + 1), f"{row.count:,}"] for row in report.exponents],
        hovertemplate="from %{customdata[0]} to %{customdata[1]}<br>%{customdata[2]} values<br>%{y:.4g}%<extra></extra>",
    )
    figure = go.Figure([bars], layout(360))
    # All exponents that occur and the fp16 range, so that unused exponents are visible.
    low, high = min(-26, report.exponents[0].exponent - 1), max(18, report.exponents[-1].exponent + 2)
    marks = [(math.log2(value), name) for value, name in _MARKS if low <= math.log2(value) <= high]
    # One line of text per mark, stacked above the bars so that names do not collide on a narrow screen. Outermost first, because names
    # point inwards and a mark ends at its name.
    left = [mark for mark in marks if mark[0] < (low + high) / 2]
    for number, (place, name) in enumerate([*left, *reversed(marks[len(left) :])]):
        threshold(figure, place, 1 - 0.42 * number / len(marks), name, right=number < len(left))
    spacing = 8 if high - low <= 80 else 32
    ticks = list(range(math.ceil(low / spacing) * spacing, math.floor(high) + 1, spacing))
    figure.update_xaxes(title="weight magnitude", range=[low, high], tickvals=ticks, ticktext=[numbers.power(tick) for tick in ticks])
    return figure.update_yaxes(title="% of the values read", range=[0, 1.8 * max(shares)], nticks=5)


def layers(report: DtypeReport) -> go.Figure | None:
    """Draw the largest magnitude in each layer, one trace per role, with the largest fp16 value."""
    drawn = sorted((row for row in report.layers if row.abs_max), key=lambda row: -1 if row.layer is None else row.layer)
    if not drawn:
        return None
    figure = go.Figure(layout=layout(350))
    highest = max((row.layer for row in drawn if row.layer is not None), default=0)
    spacing = max(1, math.ceil((highest + 1) / 6))
    outside = -spacing  # far enough from layer 0 that the labels do not overlap, for any number of layers
    hover = "%{customdata[0]}<br>largest %{y:.6g}<br>rms %{customdata[1]}<br>tensors: %{customdata[2]}"
    for style, role in enumerate(dict.fromkeys(row.role for row in report.layers)):
        rows = [row for row in drawn if row.role == role]
        # no line joins tensors outside the layers to layer 0
        points = [*(row for row in rows if row.layer is None), None, *(row for row in rows if row.layer is not None)]
        details = [None if row is None else [layer_name(row.layer), numbers.magnitude(row.rms), f"{row.tensors:,}"] for row in points]
        x = [None if row is None else outside if row.layer is None else row.layer for row in points]
        if rows:
            figure.add_trace(line(role, x, [None if row is None else row.abs_max for row in points], style, hover, details))
    level(figure, FP16.largest, "fp16 largest 65504", height=math.log10(FP16.largest))
    ticks = [outside] * any(row.layer is None for row in drawn) + list(range(0, highest + 1, spacing))
    low = math.log10(min(row.abs_max or 1.0 for row in drawn)) - 0.4
    high = math.log10(max(FP16.largest, *(row.abs_max or 1.0 for row in drawn))) + 0.6
    figure.update_xaxes(title="layer", tickvals=ticks, ticktext=["no layer" if tick < 0 else str(tick) for tick in ticks])
    figure.update_yaxes(title="largest magnitude", **log_axis(low, high))
    return legend(figure)


# Typical learning rates under Adam, which are about the size of a step.
_RATES = {1e-6: "RL", 1e-5: "fine-tuning", 3e-4: "pretraining"}


def movable(report: DtypeReport) -> go.Figure | None:
    """Draw the share of each role's weights that a step can move in pure bf16 training, against the size of the step; and the share of all
    weights that a step with fp32 master weights changes in bf16.
    """
    if (movable := report.movable) is None:
        return None
    figure = go.Figure(layout=layout(350))
    curves = {role: [1 - frozen for frozen in shares] for role, shares in movable.roles.items()}
    curves["fp32 masters, all weights"] = list(movable.expected_flips)
    for style, (name, shares) in enumerate(curves.items()):
        details = [[numbers.share(share)] for share in shares]
        hover = "step %{x:g}<br>moved: %{customdata[0]}"
        figure.add_trace(line(name, movable.steps, [100 * share for share in shares], style, hover, details))
    # above the curves, the largest first: a name points left, where the lines of smaller rates end below it
    for number, (rate, name) in enumerate(reversed(_RATES.items())):
        threshold(figure, rate, 1 - 0.08 * number, f"{name} {step_name(rate)}", right=False, at=math.log10(rate))
    decades = [exponent for exponent in range(-8, -1) if movable.steps[0] <= 10.0**exponent <= movable.steps[-1]]
    ticks = {"tickvals": [10.0**exponent for exponent in decades], "ticktext": [numbers.power(exponent, 10) for exponent in decades]}
    ends = log_axis(math.log10(movable.steps[0]), math.log10(movable.steps[-1]))
    figure.update_xaxes(title="update size (about the learning rate)", **ends | ticks)
    figure.update_yaxes(title="% of the weights that move", range=[-2, 138], tickvals=[0, 25, 50, 75, 100])
    return legend(figure)


_HOVER = "%{customdata[0]}<br>%{customdata[1]}<br>largest %{y:.6g}<br>norm %{x:.6g}<extra></extra>"


def among_models(report: DtypeReport) -> go.Figure | None:
    """Draw the labelled models by largest norm and magnitude, coloured and shaped by precision; this one, and the rule's thresholds."""
    extremes, models = report.extremes, labelled_extremes()
    if not extremes.abs_max or not extremes.norm_max:
        return None
    figure = go.Figure(layout=layout(380))
    for style, precision in enumerate(("fp16", "bf16", "fp32")):
        rows = [model for model in models if model.precision == precision]
        name, x, y = f"trained in {precision}", [model.norm_max for model in rows], [model.abs_max for model in rows]
        marker = {"symbol": MARKERS[style], "size": 9, "color": COLOURS[style], "opacity": 0.85}
        details = [[text(model.model), name] for model in rows]
        figure.add_trace(line(name, x, y, style, "", details, mode="markers", marker=marker, hovertemplate=_HOVER))
    star = {"symbol": "star", "size": 17, "color": COLOURS[3], "line": {"width": 1.5, "color": GREY}}
    details = [[text(report.checkpoint.ref), f"trained in: {text(report.training.verdict)}"]]
    here = {"mode": "markers", "marker": star, "hovertemplate": _HOVER}
    figure.add_trace(line("this model", [extremes.norm_max], [extremes.abs_max], 3, "", details, **here))
    figure.add_shape(type="line", xref="paper", x0=0, x1=1, y0=PUBLISHED.abs_max, y1=PUBLISHED.abs_max, line=LIMIT)
    figure.add_shape(type="line", yref="paper", y0=0, y1=1, x0=PUBLISHED.norm_max, x1=PUBLISHED.norm_max, line=LIMIT)
    size, norm = (numbers.power(round(math.log10(limit)), 10) for limit in PUBLISHED)
    above(figure, f"dashed: above {size}: bf16;<br>below: fp16 left of {norm}, fp32 right")
    figure.update_xaxes(title="largest tensor norm", **_decades(extremes.norm_max, *(model.norm_max for model in models)))
    figure.update_yaxes(title="largest magnitude", **_decades(extremes.abs_max, *(model.abs_max for model in models)))
    return legend(figure).update_layout(legend_itemsizing="constant")


def _decades(*values: float) -> dict[str, object]:
    return log_axis(math.floor(math.log10(min(values)) - 0.3), math.ceil(math.log10(max(values)) + 0.3))
