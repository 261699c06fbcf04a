"""Draws the figures of gradient conflict: by layer, between samples, by batch size, by activation, and next to the published run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go

from analyzers.core.records import Interval
from analyzers.gradient_conflict.report import ConflictReport, excerpts
from components.plots.marks import COLOUR_BAR, error_bars, line, marked, only_value, say_only, square
from components.plots.style import COLOURS, LIMIT, exactly, label, layout, legend, text
from components.text import numbers

CHANCE = "dashed: unrelated gradients, about 50%"


class Curve(NamedTuple):
    """A line of a figure. details: hover text of each point; intervals: of the values, if they have any."""

    name: str
    x: Sequence[int]
    values: Sequence[float | None]
    details: Sequence[Sequence[str]]
    intervals: Sequence[Interval | None] = ()


def rates(report: ConflictReport) -> go.Figure:
    """Draw the conflict rate of each layer with its 95% interval, for top-k and the original."""

    def details(row: Any) -> list[str]:
        return [exactly(row.conflict_rate), numbers.between(row.interval), f"{row.pairs:,}", exactly(row.conflict_rate_historic)]

    hover = "layer %{x}<br>%{customdata[0]} in conflict<br>95%: %{customdata[1]}<br>%{customdata[2]} pairs"
    hover += "<br>rate as published %{customdata[3]}"
    figure = _rates(_curves(report, report.layers, "layer", "conflict_rate", "interval", details), hover, _has_chance(report))
    return _layer_axis(figure, report)


def similarity(report: ConflictReport) -> go.Figure:
    """Draw the gradient-norm similarity by layer, for top-k and the original."""

    def details(row: Any) -> list[str]:
        within: Interval | None = row.magnitude_interval
        interval = "" if within is None else f"{numbers.magnitude(within.low)} to {numbers.magnitude(within.high)}"
        return [numbers.magnitude(row.magnitude_similarity), interval]

    hover = "layer %{x}<br>similarity %{customdata[0]}<br>95%: %{customdata[1]}"
    figure = _figure(
        _curves(report, report.layers, "layer", "magnitude_similarity", "magnitude_interval", details), hover, "gradient-norm similarity"
    )
    return _layer_axis(figure, report)


def batches(report: ConflictReport) -> go.Figure:
    """Draw the conflict between mean gradients by batch size, for units and for the whole gradient; single samples have size 1."""
    ticks = sorted({1, *(row.batch_size for row in report.batch_curve)})
    curves = []
    for ffn, name in _sides(report).items():
        model, rows = report.unmodified if ffn == "original" else report.model, [row for row in report.batch_curve if row.ffn == ffn]
        unit = [(model.conflict_rate, model.mean_cosine), *((row.conflict_rate, row.mean_cosine) for row in rows)]
        whole = [(model.whole.conflict_rate, model.whole.mean_cosine)]
        whole += [(row.whole_conflict_rate, row.whole_mean_cosine) for row in rows]
        for title, pairs in ((name, unit), ("whole gradient" if report.original is None else f"whole gradient, {name}", whole)):
            details = [[exactly(rate), numbers.magnitude(cosine)] for rate, cosine in pairs]
            curves.append(Curve(title, ticks, [rate for rate, _ in pairs], details))
    hover = "batches of %{x}<br>%{customdata[0]} in conflict<br>mean cosine %{customdata[1]}"
    figure = _rates(curves, hover, _has_chance(report))
    return figure.update_xaxes(title="samples in a batch", type="log", tickvals=ticks, ticktext=[str(tick) for tick in ticks])


def deciles(report: ConflictReport) -> go.Figure:
    """Draw the conflict rate of each decile of the neurons by activity, least active first."""

    def details(row: Any) -> list[str]:
        return [exactly(row.conflict_rate), numbers.between(row.interval), f"{row.neurons:,}", numbers.magnitude(row.mean_activation)]

    hover = "decile %{x}<br>%{customdata[0]} in conflict<br>95%: %{customdata[1]}"
    hover += "<br>%{customdata[2]} neurons, mean |activation| %{customdata[3]}"
    figure = _rates(_curves(report, report.deciles, "decile", "conflict_rate", "interval", details), hover, _has_chance(report))
    return figure.update_xaxes(title="decile of the neurons by activation", dtick=1, range=[0.6, 10.4])


def published(report: ConflictReport) -> go.Figure:
    """Draw the published conflict rates, and those of this run, which has the published setting."""
    from analyzers.gradient_conflict.published import published as rows_of

    ours = [row for row in report.layers if row.ffn == report.ffn.variant]
    sources: dict[str, list[Any]] = {
        "published": [(row.layer, row.conflict_rate, row.magnitude_similarity) for row in rows_of()],
        "this run": [(row.layer, row.conflict_rate_historic, row.magnitude_similarity_historic) for row in ours],
    }
    curves = []
    for name, rows in sources.items():
        details = [[exactly(rate), numbers.magnitude(alike)] for _, rate, alike in rows]
        curves.append(Curve(name, [layer for layer, _, _ in rows], [rate for _, rate, _ in rows], details))
    hover = "layer %{x}<br>%{customdata[0]}, similarity %{customdata[1]}"
    figure = _rates(curves, hover, chance=True, title="rate as published, %")
    return figure.update_xaxes(title="layer", nticks=8)


def _sides(report: ConflictReport) -> dict[str, str]:
    """Return the FFNs measured with their names in a legend; one alone is named after its units."""
    if report.original is not None:
        return {"topk": "top-k FFN", "original": "original FFN"}
    return {"original": "neurons" if report.ffn.unit == "ffn" else "rows of attention projections"}


def _curves(
    report: ConflictReport, rows: Sequence[Any], x: str, field: str, interval: str, details: Callable[[Any], list[str]]
) -> list[Curve]:
    """Return a curve of a field with its interval for each FFN. x: the field on the other axis."""
    curves = []
    for ffn, name in _sides(report).items():
        drawn = [row for row in rows if row.ffn == ffn]
        xs, values, intervals = ([getattr(row, each) for row in drawn] for each in (x, field, interval))
        curves.append(Curve(name, xs, values, list(map(details, drawn)), intervals))
    return curves


def _layer_axis(figure: go.Figure, report: ConflictReport) -> go.Figure:
    last = max((row.layer for row in report.layers), default=0)
    return figure.update_xaxes(title="layer", tick0=0, dtick=max(1, -(-last // 8)), range=[-0.4, last + 0.4])


def _rates(curves: Sequence[Curve], hover: str, chance: bool, title: str = "pairs in conflict, %") -> go.Figure:
    """Draw rates in percent. chance: draw the line of unrelated gradients, and include it in the axis."""
    figure = _figure(curves, hover, title, 100)
    if chance:
        figure.add_shape(type="line", xref="paper", x0=0, x1=1, y0=50, y1=50, line=LIMIT, layer="below")
        label(figure, CHANCE, xref="paper", x=1, xanchor="right", yref="paper", y=1, yanchor="bottom", yshift=4)
        figure.update_layout(margin_t=30)
        figure.update_yaxes(autorangeoptions_include=50)
    return figure


def _figure(curves: Sequence[Curve], hover: str, title: str, scale: float = 1) -> go.Figure:
    figure = go.Figure(layout=layout(340))
    for style, (name, x, values, details, intervals) in enumerate(curves):
        shown = [None if value is None else scale * value for value in values]
        lows, highs = ([None if each is None else scale * getattr(each, end) for each in intervals] for end in ("low", "high"))
        bars = {"error_y": error_bars(shown, lows, highs, marked(style)["color"])} if any(intervals) else {}
        figure.add_trace(line(name, x, shown, style, hover, details, **bars))
    figure.update_yaxes(title=title, nticks=6)
    legend(figure)
    return figure


def _has_chance(report: ConflictReport) -> bool:
    """Return whether a conflict is any cosine below 0, as for half of the pairs of unrelated gradients."""
    return report.request.gamma == 0


# Colours from conflict to agreement, grey at 0. They change fastest near 0, since most cosines are small.
DIVERGING = (
    (0.0, "rgb(200,98,10)"), (0.25, "rgba(200,98,10,0.85)"), (0.45, "rgba(200,98,10,0.4)"), (0.5, "rgba(124,130,141,0.28)"),
    (0.55, "rgba(59,111,224,0.4)"), (0.75, "rgba(59,111,224,0.85)"), (1.0, "rgb(59,111,224)"),
)  # fmt: skip
# Most characters of a label next to an axis on a narrow screen.
_LINE = 40
# Most samples for which cells are large enough for gaps between them.
_GAPS = 32


def cosines(report: ConflictReport) -> go.Figure:
    """Draw the (S, S) cosines between whole gradients of samples."""
    figure = _heat_map(report.cosines.model, _names(report))
    only = only_value((value for row in figure.data[0].z for value in row), digits=4)
    if only is not None:
        say_only(figure, f"Every pair of samples: cosine {only:.4g}")
    return figure


def dominance(report: ConflictReport) -> go.Figure:
    """Draw a bar per sample, its share of the sum of |g|^2, and a line at equal shares."""
    rows = [row for row in report.dominance.samples if row.ffn == report.ffn.variant]
    details = [
        [
            name,
            exactly(row.share),
            numbers.magnitude(row.cosine_to_rest),
            numbers.NOTHING if row.leave_one_out_cosine is None else f"{row.leave_one_out_cosine:.4f}",
            numbers.share(row.neurons_led),
        ]
        for row, name in zip(rows, _names(report), strict=True)
    ]
    bars = go.Bar(
        x=[row.sample for row in rows],
        y=[None if row.share is None else 100 * row.share for row in rows],
        marker={"color": COLOURS[0]},
        customdata=details,
        hovertemplate="%{customdata[0]}<br>%{customdata[1]} of the squared norm<br>cosine to the rest %{customdata[2]}"
        "<br>cosine of the mean without it %{customdata[3]}<br>largest in %{customdata[4]} of the units<extra></extra>",
    )
    figure = go.Figure([bars], layout(280))
    equal = 100 / len(rows)
    figure.add_shape(type="line", xref="paper", x0=0, x1=1, y0=equal, y1=equal, line=LIMIT)
    label(figure, "dashed: equal shares", xref="paper", x=1, xanchor="right", yref="paper", y=1, yanchor="bottom", yshift=4)
    figure.update_layout(margin_t=30)
    figure.update_xaxes(title="sample", nticks=10)
    figure.update_yaxes(title="share of the squared norm, %", nticks=5, rangemode="tozero")
    return figure


def _heat_map(values: Sequence[Sequence[float | None]], names: Sequence[str]) -> go.Figure:
    """Draw the (S, S) cosines between samples named ``names``; the diagonal is empty."""
    gap = int(len(names) <= _GAPS)
    cells = go.Heatmap(
        x=names,
        y=names,
        z=_without_diagonal(values),
        zmin=-1,
        zmid=0,
        zmax=1,
        colorscale=[list(stop) for stop in DIVERGING],
        hoverongaps=False,
        hovertemplate="%{y}<br>%{x}<br>cosine %{z:.4f}<extra></extra>",
        colorbar=COLOUR_BAR | {"tickvals": [-1, -0.5, 0, 0.5, 1], "tickangle": 0},
        xgap=gap,
        ygap=gap,
    )
    figure = square(cells, len(names))
    ticks = list(range(0, len(names), max(1, math.ceil(len(names) / 10))))
    axis = {"title": "sample", "type": "category", "tickvals": ticks, "ticktext": [str(tick) for tick in ticks], "tickangle": 0}
    return figure.update_xaxes(**axis).update_yaxes(**axis)


def _without_diagonal(values: Sequence[Sequence[float | None]]) -> list[list[float | None]]:
    return [[None if row == column else value for column, value in enumerate(line)] for row, line in enumerate(values)]


def _names(report: ConflictReport) -> list[str]:
    """Label each sample with its number and the beginning of its text, in two lines; labels are distinct."""
    names = []
    for number, excerpt in enumerate(excerpts(report, 2 * _LINE)):
        cut = excerpt.rfind(" ", 0, _LINE) if len(excerpt) > _LINE else -1
        first, rest = (excerpt[:cut], excerpt[cut + 1 :]) if cut > 0 else (excerpt[:_LINE], excerpt[_LINE:])
        names.append("<br>".join([f"{number}: {text(first)}", *([text(rest)] if rest else [])]))
    return names
