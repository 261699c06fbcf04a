"""Shared by all figures: layout, colours and markers. The style sheet sets the colours of text, grid and limits."""

from typing import TYPE_CHECKING

from components.text import numbers, plain_text

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

# Each has a contrast of at least 3:1 on the light and the dark card. Traces also differ by marker and dash.
COLOURS = ("#3b6fe0", "#c8620a", "#0a8f6a", "#b8478f", "#8060d8", "#7c828d", "#0e8ea3", "#8a7a10")
MARKERS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "triangle-down")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "solid", "dash", "dot")
LIMIT = {"color": "#b42318", "dash": "dash", "width": 1.2}
# The style sheet fills annotations with the card's colour so that no line crosses a label; Plotly draws the background only if one is set.
GROUND = "rgba(0,0,0,0.01)"


def layout(height: int) -> dict[str, object]:
    """The layout of a figure ``height`` pixels high, without zooming or dragging."""
    return {
        "height": height,
        "margin": {"l": 56, "r": 12, "t": 12, "b": 48},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": "#7c828d"},
        "template": "none",
        "dragmode": False,
        "showlegend": False,
        "hoverlabel": {"align": "left"},
        "xaxis": {"fixedrange": True, "zeroline": False, "ticks": "outside", "ticklen": 4, "tickcolor": "rgba(0,0,0,0)"},
        "yaxis": {
            "fixedrange": True,
            "zeroline": False,
            "ticks": "outside",
            "ticklen": 4,
            "tickcolor": "rgba(0,0,0,0)",
            "gridcolor": "#7c828d",
            "gridwidth": 1,
            "tickfont": {"size": 11},
        },
    }


def log_axis(low: float, high: float) -> dict[str, object]:
    """Settings of a logarithmic axis from 10^low to 10^high; Plotly chooses as many ticks as fit on a narrow screen.

    Over one to three decades Plotly would label nine ticks per decade: "D2" limits them to 1, 2 and 5.
    """
    ticks = {"dtick": "D2"} if 0.7 < high - low < 3 else {"nticks": 7}
    return {"type": "log", "range": [low, high], "exponentformat": "power", **ticks}


def threshold(figure: "Figure", x: float, height: float, name: str, right: bool) -> None:
    """A vertical line at ``x`` up to the share ``height`` of the figure, with its name (trusted plain text) at the top, on the right or
    left.
    """
    figure.add_shape(type="line", yref="paper", x0=x, x1=x, y0=0, y1=height, line=LIMIT)
    figure.add_annotation(
        x=x,
        yref="paper",
        y=height,
        text=name,
        showarrow=False,
        xanchor="left" if right else "right",
        xshift=4 if right else -4,
        yanchor="top",
        font={"size": 11},
        bgcolor=GROUND,
        borderpad=1,
    )


def text(words: str) -> str:
    """Escape external text for a figure: Plotly parses a subset of HTML in its texts, in which quotes are not escaped."""
    return plain_text.html(words, 60).replace("&quot;", '"').replace("&#x27;", "'")


def exactly(share: float | None) -> str:
    """A share for a hover text: in percent, with six digits."""
    return numbers.NOTHING if share is None else f"{100 * share:.6g}%"
