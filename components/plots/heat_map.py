"""Shared by heat maps: the colour bar above, square cells of whole pixels, and a sentence if all cells have the same value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import plotly.graph_objects as go

from components.plots.style import layout

COLOUR_BAR: dict[str, Any] = {"orientation": "h", "y": 1, "yanchor": "bottom", "thickness": 8, "len": 1, "outlinewidth": 0, "ypad": 4}
# Maximum side of a square of cells in pixels, unless cells would be smaller than `_SMALLEST`.
_SIDE = 360
_LARGEST, _SMALLEST = 90, 2
# Margins for the colour bar with its numbers above the cells, and the axis labels and title below.
_MARGIN = {"l": 52, "r": 16, "t": 40, "b": 48}


def only_value(values: Iterable[float | None], digits: int = 6) -> float | None:
    """The value shared by all cells, to ``digits`` significant digits; None if values differ or there are none."""
    known = [value for value in values if value is not None]
    return known[0] if len({f"{value:.{digits}g}" for value in known}) == 1 else None


def say_only(figure: go.Figure, words: str) -> None:
    """Show ``words`` (trusted plain text) instead of the colour bar: a single value has no scale."""
    figure.update_traces(showscale=False)
    place = {"xref": "paper", "x": 0, "xanchor": "left", "yref": "paper", "y": 1, "yanchor": "bottom", "yshift": 4}
    figure.add_annotation(text=words, showarrow=False, **place)
    figure.update_layout(margin_t=max(28, figure.layout.margin.t))


def side_of(count: int, longest: int = _SIDE) -> int:
    """Pixels of the side of ``count`` cells, the same whole number for each, ``longest`` in total unless they would be too small."""
    return count * max(_SMALLEST, min(_LARGEST, longest // max(1, count)))


def square(cells: go.Heatmap, count: int) -> go.Figure:
    """A figure of ``count`` x ``count`` square cells of whole pixels; on a narrow screen all cells shrink equally."""
    figure = go.Figure([cells], layout(side_of(count) + _MARGIN["t"] + _MARGIN["b"]))
    figure.update_xaxes(constrain="domain")
    figure.update_yaxes(constrain="domain", constraintoward="top", scaleanchor="x", autorange="reversed", showgrid=False)
    figure.update_layout(margin=_MARGIN)
    return figure
