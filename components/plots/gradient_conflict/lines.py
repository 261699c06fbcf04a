"""Shared by the curves of gradient conflict: a line per kind of FFN, with intervals, and a legend."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from components.plots.style import COLOURS, DASHES, MARKERS
from components.text import numbers

if TYPE_CHECKING:
    from plotly.graph_objects import Figure, Scatter

    from analyzers.base import Interval

# Pixels below the axis, past its title.
_LEGEND = 54


def line(
    name: str,
    index: int,
    x: Sequence[float],
    shares: Sequence[float | None],
    intervals: "Sequence[Interval | None]" = (),
    details: Sequence[Sequence[str]] = (),
    hover: str = "",
    scale: float = 100.0,
) -> "Scatter":
    """A line of shares, in percent unless ``scale`` is 1, in style ``index``. details: customdata of each point for ``hover``."""
    from plotly.graph_objects import Scatter

    style: dict[str, Any] = {}
    if any(intervals):
        pairs = [
            (0.0, 0.0) if share is None or each is None else (each.high - share, share - each.low)
            for share, each in zip(shares, intervals, strict=True)
        ]
        style["error_y"] = {
            "type": "data",
            "symmetric": False,
            "array": [scale * max(0.0, above) for above, _ in pairs],
            "arrayminus": [scale * max(0.0, below) for _, below in pairs],
            "color": COLOURS[index],
            "thickness": 1.2,
            "width": 3,
        }
    return Scatter(
        x=list(x),
        y=[None if share is None else scale * share for share in shares],
        name=name,
        mode="lines+markers",
        line={"color": COLOURS[index], "dash": DASHES[index], "width": 2},
        marker={"symbol": MARKERS[index], "size": 7, "color": COLOURS[index]},
        customdata=[list(each) for each in details],
        cliponaxis=False,
        hovertemplate=hover + "<extra></extra>",
        **style,
    )


def legend(figure: "Figure") -> None:
    """Add a legend below the axis if there are several traces."""
    if len(figure.data) > 1:
        below = {"orientation": "h", "x": 0, "y": -_LEGEND / (figure.layout.height - 60), "yanchor": "top"}
        figure.update_layout(showlegend=True, legend=below | {"itemclick": False, "itemdoubleclick": False})
        more = 28 if len(figure.data) < 3 else 22 * len(figure.data)  # on a narrow screen each entry takes its own line
        figure.update_layout(height=figure.layout.height + more, margin_b=figure.layout.margin.b + more)


def hover_interval(interval: "Interval | None") -> str:
    """An interval for a hover text."""
    return "" if interval is None else f"{numbers.share(interval.low)} to {numbers.share(interval.high)}"
