"""Draws one group of weights on the levels of its grid, and says what the figure shows."""

from __future__ import annotations

import plotly.graph_objects as go

from analyzers.dtype_detection import DtypeReport
from analyzers.dtype_detection.report import Grid, GridExample
from analyzers.grids import describe
from components.plots.style import COLOURS, GREY, layout
from components.text import numbers, shown

# Most levels that can be told apart in the figure.
_LEVELS = 31


def example_of(report: DtypeReport) -> tuple[Grid, GridExample] | None:
    """Return the first grid with a group to draw, and the group."""
    return next(((grid, grid.example) for grid in report.grids if grid.example is not None), None)


def caption(report: DtypeReport) -> str:
    """Say what the figure shows, or why there is none."""
    found = example_of(report)
    if found is None:
        return "No group is drawn: neighbours do not share a scale, or the first groups hold too few different values."
    grid, group = found
    inside = "of one group" if grid.group.isdigit() and int(grid.group) == len(group.values) else "of a group"
    levels, weights = _drawn(group)
    part, outside = "the", len(group.values) - len(weights)
    if len(levels) < len(group.levels):
        part = f"{len(levels)} of the {len(group.levels)}"
    hidden = f" {numbers.plural(outside, 'weight is', 'weights are')} outside the range drawn." if outside else ""
    return (
        f"{numbers.plural(len(group.values), 'weight')} {inside} of {shown(group.name)}, from element {group.first:,} on, as stored. "
        f"Lines are {part} levels of {describe(grid)}, at the scale that explains every one of these weights.{hidden} Weights that no "
        "quantizer made would lie between the lines."
    )


def _drawn(group: GridExample) -> tuple[tuple[float, ...], list[tuple[int, float]]]:
    """Return the levels to draw, few enough to be told apart, and the weights on them with their position: where most weights are."""
    level_of = [min(range(len(group.levels)), key=lambda k: abs(group.levels[k] - value)) for value in group.values]
    starts = range(max(1, len(group.levels) - _LEVELS + 1))
    first = max(starts, key=lambda k: sum(k <= level < k + _LEVELS for level in level_of))
    weights = [(i, value) for i, (value, level) in enumerate(zip(group.values, level_of, strict=True)) if first <= level < first + _LEVELS]
    return group.levels[first : first + _LEVELS], weights


def group_on_grid(report: DtypeReport) -> go.Figure:
    """Draw the weights of a group in their order, and a line at each level."""
    figure = go.Figure(layout=layout(380))
    found = example_of(report)
    if found is None:
        return figure
    _, group = found
    levels, weights = _drawn(group)
    last = len(group.values) - 1
    x = [edge for _ in levels for edge in (-0.5, last + 0.5, None)]
    y = [edge for level in levels for edge in (level, level, None)]
    figure.add_scatter(x=x, y=y, mode="lines", line={"color": GREY, "width": 0.6}, opacity=0.7, hoverinfo="skip")
    figure.add_scatter(
        x=[i for i, _ in weights],
        y=[value for _, value in weights],
        mode="markers",
        marker={"color": COLOURS[0], "size": 6},
        customdata=[[group.first + i, f"{value:.9g}"] for i, value in weights],
        hovertemplate="element %{customdata[0]}<br>%{customdata[1]}<extra></extra>",
        cliponaxis=False,
    )
    figure.update_xaxes(title="weight, in stored order", range=[-0.5, last + 0.5])
    figure.update_yaxes(title="value", showgrid=False, nticks=7)
    return figure
