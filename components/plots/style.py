"""Defines the layout, data colours, legends and thresholds of all figures. The page's script sets the colours of text, grid and labels."""

from __future__ import annotations

import math
from html import escape

import plotly.graph_objects as go

from components.text import numbers, shown

# Each colour has a contrast of at least 3:1 on the light and the dark card. Traces also differ by marker and dash.
COLOURS = ("#3b6fe0", "#c8620a", "#0a8f6a", "#b8478f", "#8060d8", "#7c828d", "#0e8ea3", "#8a7a10", "#a0614f")
MARKERS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "triangle-down")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "solid", "dash", "dot")
LIMIT = {"color": "#d0453a", "dash": "dash", "width": 1.2}
GREY = "#7c828d"
# The script fills backgrounds that are set with the card's colour, so that no line crosses a label.
_LABEL = {"showarrow": False, "font": {"size": 11}, "bgcolor": "rgba(0,0,0,0.01)", "borderpad": 1}
# Pixels of a line of the legend.
_LINE = 20


def layout(height: int) -> dict[str, object]:
    """Return the layout of a figure ``height`` pixels high, without zooming or dragging."""
    axis = {"fixedrange": True, "zeroline": False, "ticks": "outside", "ticklen": 4, "tickcolor": "rgba(0,0,0,0)", "tickfont": {"size": 11}}
    return {
        "height": height,
        "margin": {"l": 56, "r": 12, "t": 12, "b": 48},
        "font": {"family": "system-ui, sans-serif", "size": 12},
        "template": "none",
        "dragmode": False,
        "showlegend": False,
        "hoverlabel": {"align": "left"},
        "xaxis": axis | {"showgrid": False},
        "yaxis": axis | {"gridwidth": 1},
    }


def log_axis(low: float, high: float) -> dict[str, object]:
    """Return settings of a logarithmic axis from 10^low to 10^high, with as many ticks as fit on a narrow screen.

    By default, Plotly labels up to nine ticks per decade, in two sizes: "D2" limits them to 1, 2 and 5, "~g" writes those in full.
    """
    decades = high - low
    ticks = {"nticks": 6} if decades < 0.7 else {"dtick": "D2", "tickformat": "~g"} if decades < 2 else {"dtick": math.ceil(decades / 4)}
    return {"type": "log", "range": [low, high], "exponentformat": "power", "tickangle": 0, **ticks}


def legend(figure: go.Figure) -> go.Figure:
    """Add a legend at the bottom if several traces have a name; a click hides or shows a trace.

    Plotly reserves the lines that it needs on this screen, below the axis and its title.
    """
    named = {trace.name for trace in figure.data if trace.showlegend is not False}
    if len(named) > 1:
        below = {"orientation": "h", "x": 0, "yref": "container", "y": 0, "yanchor": "bottom", "itemdoubleclick": False}
        figure.update_layout(showlegend=True, legend=below, height=figure.layout.height + _LINE * math.ceil(len(named) / 2))
        figure.update_xaxes(automargin=True)
    return figure


def label(figure: go.Figure, name: str, **place: object) -> None:
    """Write ``name`` (trusted plain text) into the figure."""
    figure.add_annotation(text=name, **_LABEL | place)


def above(figure: go.Figure, name: str) -> None:
    """Write ``name`` (trusted plain text) above the figure, on the right."""
    label(figure, name, xref="paper", x=1, xanchor="right", yref="paper", y=1, yanchor="bottom", yshift=4, align="right")
    figure.update_layout(margin_t=30 + 14 * name.count("<br>"))


def level(figure: go.Figure, y: float, name: str, height: float | None = None) -> None:
    """Draw a horizontal line at ``y`` across the figure, with its name. height: position of the label if it is not y (log axes)."""
    figure.add_shape(type="line", xref="paper", x0=0, x1=1, y0=y, y1=y, line=LIMIT)
    label(figure, name, xref="paper", x=1, xanchor="right", y=y if height is None else height, yanchor="bottom")


def threshold(figure: go.Figure, x: float, height: float, name: str, right: bool, at: float | None = None) -> None:
    """Draw a vertical line at ``x`` up to the share ``height`` of the figure, with its name at the top, on the right or left.

    at: position of the name if it is not x (log axes).
    """
    figure.add_shape(type="line", yref="paper", x0=x, x1=x, y0=0, y1=height, line=LIMIT)
    side, shift = ("left", 4) if right else ("right", -4)
    label(figure, name, x=x if at is None else at, xanchor=side, xshift=shift, yref="paper", y=height, yanchor="top")


def text(words: str) -> str:
    """Escape external text for a figure: Plotly parses a subset of HTML in its texts, in which quotes are not escaped."""
    return escape(shown(words, 60), quote=False)


def exactly(share: float | None) -> str:
    """Format a share for a hover text: in percent, with six digits."""
    return numbers.NOTHING if share is None else f"{100 * share:.6g}%"
