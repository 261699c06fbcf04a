"""What the curves of exit feedback have in common: a line for each signal, in its own style."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from components.exit.names import EXACT, style
from components.plots.marks import marked
from components.plots.style import text

if TYPE_CHECKING:
    from plotly.graph_objects import Scatter

_MARKS = 9


def line(
    name: str, x: Sequence[float], y: Sequence[float | None], hover: str, said: Sequence[Sequence[str]] = (), **changes: Any
) -> "Scatter":
    """hover: below the name, of ``x``, ``y`` and the customdata ``said``. Of many marks only some are drawn."""
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
