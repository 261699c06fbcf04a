"""What all figures share: their layout, colours and markers. Colours of text, grid and limits come from the style sheet."""

from typing import TYPE_CHECKING

from components.text import numbers, plain_text

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

# Each has at least 3:1 against the light and the dark card, and traces differ by marker and dash as well as by colour.
COLOURS = ("#3b6fe0", "#c8620a", "#0a8f6a", "#b8478f", "#8060d8", "#7c828d", "#0e8ea3", "#8a7a10")
MARKERS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "triangle-down")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "solid", "dash", "dot")
LIMIT = {"color": "#b42318", "dash": "dash", "width": 1.2}
# The style sheet gives annotations the card's colour as their ground, so that no line crosses a label; this makes Plotly draw it.
GROUND = "rgba(0,0,0,0.01)"


def layout(height: int) -> dict[str, object]:
    """The layout of a figure ``height`` pixels high that neither zooms nor drags."""
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
    """Settings of a logarithmic axis from 10^low to 10^high; Plotly chooses the ticks, as many as have room on a narrow screen.

    Over one to three decades its own choice is nine ticks to each: "D2" asks for 1, 2 and 5.
    """
    ticks = {"dtick": "D2"} if 0.7 < high - low < 3 else {"nticks": 7}
    return {"type": "log", "range": [low, high], "exponentformat": "power", **ticks}


def threshold(figure: "Figure", x: float, height: float, name: str, right: bool) -> None:
    """A vertical line at ``x`` to the share ``height`` of the figure, its name (plain text of ours) at the top, right or left of it."""
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
    """Text from outside for a figure: Plotly reads a small HTML in its texts, in which quotes are not escaped."""
    return plain_text.html(words, 60).replace("&quot;", '"').replace("&#x27;", "'")


def exactly(share: float | None) -> str:
    """A share as hovering tells it: in percent, with six digits."""
    return numbers.NOTHING if share is None else f"{100 * share:.6g}%"
