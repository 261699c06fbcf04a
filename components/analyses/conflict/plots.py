"""Draws the figures of gradient conflict: by layer, between samples, the share of each sample, and by batch size."""

from __future__ import annotations

import math
from collections.abc import Sequence

import plotly.graph_objects as go

from analyzers.conflict.report import ConflictReport, excerpts
from components.plots.marks import COLOUR_BAR, error_bars, line, marked, percent
from components.plots.style import COLOURS, LIMIT, above, exactly, layout, legend, text
from components.text import numbers

# Colours from conflict to agreement, grey at 0. They change fastest near 0, since most cosines are small.
_DIVERGING = (
    (0.0, "rgb(200,98,10)"), (0.25, "rgba(200,98,10,0.85)"), (0.45, "rgba(200,98,10,0.4)"), (0.5, "rgba(124,130,141,0.28)"),
    (0.55, "rgba(59,111,224,0.4)"), (0.75, "rgba(59,111,224,0.85)"), (1.0, "rgb(59,111,224)"),
)  # fmt: skip
# Longest side of the square of cosines, and its margins, in pixels; most samples for which cells are large enough for gaps between them.
_SIDE, _CELL, _MARGIN, _GAPS = 360, 90, {"l": 52, "r": 16, "t": 40, "b": 48}, 32


def rates(report: ConflictReport) -> go.Figure | None:
    """Draw the conflict rate of each layer with its 95% interval, for top-k and the original."""
    if not report.layers:
        return None
    figure = go.Figure(layout=layout(340))
    hover = "layer %{x}<br>%{customdata[0]} in conflict<br>95%: %{customdata[1]}<br>%{customdata[2]} pairs"
    for style, (ffn, name) in enumerate(_sides(report).items()):
        rows = [row for row in report.layers if row.ffn == ffn]
        details = [[exactly(row.conflict_rate), numbers.between(row.interval), f"{row.pairs:,}"] for row in rows]
        values = [percent(row.conflict_rate) for row in rows]
        lows, highs = ([None if row.interval is None else 100 * getattr(row.interval, end) for row in rows] for end in ("low", "high"))
        bars = error_bars(values, lows, highs, marked(style)["color"])
        figure.add_trace(line(name, [row.layer for row in rows], values, style, hover, details, error_y=bars))
    last = max(row.layer for row in report.layers)
    figure.update_xaxes(title="layer", tick0=0, dtick=max(1, math.ceil(last / 8)), range=[-0.4, last + 0.4])
    return _conflict_axis(figure, report)


def batches(report: ConflictReport) -> go.Figure | None:
    """Draw the conflict between mean gradients by batch size, for units and for the whole gradient; single samples have size 1."""
    if not report.batch_curve:
        return None
    figure = go.Figure(layout=layout(340))
    hover = "batches of %{x}<br>%{customdata[0]} in conflict<br>mean cosine %{customdata[1]}"
    curves: dict[str, tuple[list[int], list[tuple[float | None, float | None]]]] = {}
    for ffn, name in _sides(report).items():
        model = report.unmodified if ffn == "original" else report.model
        rows = [row for row in report.batch_curve if row.ffn == ffn]
        sizes = [1, *(row.batch_size for row in rows)]
        units = [(model.conflict_rate, model.mean_cosine), *((row.conflict_rate, row.mean_cosine) for row in rows)]
        whole = [(model.whole.conflict_rate, model.whole.mean_cosine), *((row.whole_conflict_rate, row.whole_mean_cosine) for row in rows)]
        curves |= {name: (sizes, units), ("whole gradient" if report.original is None else f"whole gradient, {name}"): (sizes, whole)}
    for style, (name, (sizes, pairs)) in enumerate(curves.items()):
        details = [[exactly(rate), numbers.magnitude(cosine)] for rate, cosine in pairs]
        figure.add_trace(line(name, sizes, [percent(rate) for rate, _ in pairs], style, hover, details))
    ticks = sorted({1, *(row.batch_size for row in report.batch_curve)})
    figure.update_xaxes(title="samples in a batch", type="log", tickvals=ticks, ticktext=list(map(str, ticks)))
    return _conflict_axis(figure, report)


def _sides(report: ConflictReport) -> dict[str, str]:
    """Return the FFNs measured with their names in a legend; one alone is named after its units."""
    if report.original is not None:
        return {"topk": "top-k FFN", "original": "original FFN"}
    return {"original": "neurons"}


def _conflict_axis(figure: go.Figure, report: ConflictReport) -> go.Figure:
    """Name the axis of rates and, where a conflict is any cosine below 0, draw the rate of unrelated gradients."""
    figure.update_yaxes(title="pairs in conflict, %", nticks=6)
    if report.request.gamma == 0:
        figure.add_shape(type="line", xref="paper", x0=0, x1=1, y0=50, y1=50, line=LIMIT)
        above(figure, "dashed: 50%, the rate of independent gradients")
        figure.update_yaxes(autorangeoptions_include=50)
    return legend(figure)


def cosines(report: ConflictReport) -> go.Figure | None:
    """Draw the (S, S) cosines between whole gradients of samples; the diagonal is empty."""
    names, gap = _names(report), int(len(report.samples) <= _GAPS)
    matrix = enumerate(report.cosines.model)
    values = [[None if row == column else value for column, value in enumerate(cosines)] for row, cosines in matrix]
    if not any(value is not None for row in values for value in row):
        return None
    cells = go.Heatmap(
        x=names,
        y=names,
        z=values,
        zmin=-1,
        zmid=0,
        zmax=1,
        colorscale=[list(stop) for stop in _DIVERGING],
        hoverongaps=False,
        hovertemplate="%{y}<br>%{x}<br>cosine %{z:.4f}<extra></extra>",
        colorbar=COLOUR_BAR | {"tickvals": [-1, -0.5, 0, 0.5, 1], "tickangle": 0},
        xgap=gap,
        ygap=gap,
    )
    # a whole number of pixels per cell; on a narrow screen all cells shrink equally
    side = len(names) * max(2, min(_CELL, _SIDE // len(names)))
    figure = go.Figure([cells], layout(side + _MARGIN["t"] + _MARGIN["b"]))
    ticks = list(range(0, len(names), math.ceil(len(names) / 10)))
    axis = {"title": "sample", "type": "category", "tickvals": ticks, "ticktext": list(map(str, ticks)), "tickangle": 0}
    figure.update_xaxes(constrain="domain", **axis)
    figure.update_yaxes(constrain="domain", constraintoward="top", scaleanchor="x", autorange="reversed", showgrid=False, **axis)
    return figure.update_layout(margin=_MARGIN)


def dominance(report: ConflictReport) -> go.Figure | None:
    """Draw a bar per sample, its share of the sum of |g|^2, and a line at equal shares."""
    rows, names = [row for row in report.dominance.samples if row.ffn == report.ffn.variant], _names(report)
    if not rows:
        return None
    bars = go.Bar(
        x=[row.sample for row in rows],
        y=[percent(row.share) for row in rows],
        marker={"color": COLOURS[0]},
        customdata=[[names[row.sample], exactly(row.share), numbers.magnitude(row.cosine_to_rest)] for row in rows],
        hovertemplate="%{customdata[0]}<br>%{customdata[1]} of the squared norm<br>cosine to the rest %{customdata[2]}<extra></extra>",
    )
    figure = go.Figure([bars], layout(280))
    equal = 100 / len(rows)
    figure.add_shape(type="line", xref="paper", x0=0, x1=1, y0=equal, y1=equal, line=LIMIT)
    above(figure, "dashed: equal shares")
    figure.update_xaxes(title="sample", nticks=10)
    return figure.update_yaxes(title="share of the squared norm, %", nticks=5, rangemode="tozero")


def _names(report: ConflictReport) -> Sequence[str]:
    """Label each sample with its number and the beginning of its text; labels are distinct."""
    return [f"{number}: {text(excerpt)}" for number, excerpt in enumerate(excerpts(report, 48))]
