"""Conflict rates and gradient-norm similarities by layer, and the published ones."""

from typing import TYPE_CHECKING, Any

from components.conflict.text import sides
from components.plots.gradient_conflict.lines import hover_interval, legend, line
from components.plots.style import exactly, layout
from components.text import numbers

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from analyzers.base import Interval
    from analyzers.gradient_conflict.report import ConflictReport


def rates(report: "ConflictReport") -> "Figure":
    """The conflict rate of each layer with its 95% interval, for top-k and the original."""
    from plotly.graph_objects import Figure

    figure = Figure(layout=layout(340))
    for index, (name, found) in enumerate(sides(report)):
        rows = sorted(found.layers, key=lambda row: row.layer)
        details = [
            [exactly(row.conflict_rate), hover_interval(row.interval), f"{row.pairs:,}", exactly(row.conflict_rate_historic)]
            for row in rows
        ]
        hover = (
            f"layer %{{x}}, {name}<br>%{{customdata[0]}} in conflict<br>95%: %{{customdata[1]}}<br>%{{customdata[2]}} pairs"
            "<br>rate as published %{customdata[3]}"
        )
        of_layers = [row.conflict_rate for row in rows]
        figure.add_trace(line(name, index, [row.layer for row in rows], of_layers, [row.interval for row in rows], details, hover))
    figure.update_xaxes(title="layer", showgrid=False, **_ticks(report))
    figure.update_yaxes(title="pairs in conflict, %", nticks=6)
    legend(figure)
    return figure


def similarity(report: "ConflictReport") -> "Figure":
    """The gradient-norm similarity by layer, for top-k and the original."""
    from plotly.graph_objects import Figure

    figure = Figure(layout=layout(280))
    for index, (name, found) in enumerate(sides(report)):
        rows = sorted(found.layers, key=lambda row: row.layer)
        details = [[numbers.magnitude(row.magnitude_similarity), _sizes(row.magnitude_interval)] for row in rows]
        hover = f"layer %{{x}}, {name}<br>similarity %{{customdata[0]}}<br>95%: %{{customdata[1]}}"
        of_layers = [row.magnitude_similarity for row in rows]
        intervals = [row.magnitude_interval for row in rows]
        figure.add_trace(line(name, index, [row.layer for row in rows], of_layers, intervals, details, hover, scale=1))
    figure.update_xaxes(title="layer", showgrid=False, **_ticks(report))
    figure.update_yaxes(title="gradient-norm similarity", nticks=5)
    legend(figure)
    return figure


def published(report: "ConflictReport") -> "Figure":
    """The published conflict rates, and those of this run if it has the published setting."""
    from plotly.graph_objects import Figure

    from analyzers.gradient_conflict.published import comparable
    from analyzers.gradient_conflict.published import published as rows_of

    figure = Figure(layout=layout(320))
    theirs = rows_of()
    hover = "layer %{x}<br>%{customdata[0]}, similarity %{customdata[1]}"
    details = [[exactly(row.conflict_rate), numbers.magnitude(row.magnitude_similarity)] for row in theirs]
    figure.add_trace(line("published", 0, [row.layer for row in theirs], [row.conflict_rate for row in theirs], (), details, hover))
    if comparable(report):
        ours = sorted(report.layers, key=lambda row: row.layer)
        details = [[exactly(row.conflict_rate_historic), numbers.magnitude(row.magnitude_similarity_historic)] for row in ours]
        figure.add_trace(line("this run", 1, [row.layer for row in ours], [row.conflict_rate_historic for row in ours], (), details, hover))
    figure.update_xaxes(title="layer", nticks=8, showgrid=False)
    figure.update_yaxes(title="rate as published, %", nticks=6)
    legend(figure)
    return figure


def _sizes(interval: "Interval | None") -> str:
    return "" if interval is None else f"{numbers.magnitude(interval.low)} to {numbers.magnitude(interval.high)}"


def _ticks(report: "ConflictReport") -> dict[str, Any]:
    """Integer layer ticks, about eight of them labelled."""
    last = max((row.layer for row in report.layers), default=0)
    return {"tick0": 0, "dtick": max(1, -(-last // 8)), "range": [-0.4, last + 0.4]}
