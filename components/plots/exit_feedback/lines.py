"""A line for a signal, in its style."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from analyzers.exit_feedback.signals import EXACT
from components.exit.text import style
from components.plots.marks import marked
from components.plots.style import text

if TYPE_CHECKING:
    from plotly.graph_objects import Scatter

_MARKS = 9


def line(
    name: str, x: Sequence[float], y: Sequence[float | None], hover: str, said: Sequence[Sequence[str]] = (), **changes: Any
) -> "Scatter":
    """hover: text below the name, with ``x``, ``y`` and the customdata ``said``. Only some of many markers are drawn."""
    from plotly.graph_objects import Scatter

    drawn = marked(style(name))
    settings: dict[str, Any] = {
        "mode": "lines+markers",
        "line": {"color": drawn["color"], "dash": drawn["dash"], "width": 2.6 if name == EXACT else 2},
        "marker": {"symbol": drawn["symbol"], "size": 7, "color": drawn["color"], "maxdisplayed": _MARKS},
        "cliponaxis": False,
    }
    return Scatter(
        x=list(x),
        y=list(y),
        name=text(name),
        customdata=[list(each) for each in said],
        hovertemplate=f"{text(name)}<br>{hover}<extra></extra>",
        **settings | changes,
    )
