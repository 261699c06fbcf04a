"""Renders the legend of a figure, above it in HTML: unlike Plotly's own legend, it wraps on any screen."""

from collections.abc import Iterable
from itertools import count
from typing import Any

from components.plots.marks import marked
from components.text.render import macros

# Marker paths in a box 28 wide and 12 high, as Plotly draws them.
_PATHS = {
    "circle": "M14 2.5a3.5 3.5 0 1 0 .01 0Z",
    "square": "M10.8 2.8h6.4v6.4h-6.4Z",
    "diamond": "M14 1.5L18.5 6L14 10.5L9.5 6Z",
    "triangle-up": "M14 2L18 9H10Z",
    "triangle-down": "M14 10L18 3H10Z",
    "cross": "M12.6 2h2.8v2.6h2.6v2.8h-2.6v2.6h-2.8v-2.6h-2.6v-2.8h2.6Z",
    "x": "M11.2 1.8L14 4.6L16.8 1.8L18.2 3.2L15.4 6L18.2 8.8L16.8 10.2L14 7.4L11.2 10.2L9.8 8.8L12.6 6L9.8 3.2Z",
    "star": "M14 1.2L15.3 4.5L18.8 4.7L16.1 6.9L17 10.3L14 8.4L11 10.3L11.9 6.9L9.2 4.7L12.7 4.5Z",
}
_DASHES = {"solid": "none", "dash": "6 3", "dot": "2 2", "dashdot": "6 2 2 2", "longdash": "9 3"}


def legend(names: Iterable[str], lines: bool = True, styles: Iterable[int] | None = None) -> str:
    """Render each name with its line and marker.

    lines: whether lines join the markers; styles: indices for `marked`, by default in order.
    """
    numbered = zip(count() if styles is None else styles, names, strict=False)
    return macros("text/templates/pieces.html").legend([_row(name, marked(index), lines) for index, name in numbered])


def _row(name: str, style: dict[str, Any], line: bool) -> dict[str, Any]:
    return {"name": name, "line": line, "color": style["color"], "dashes": _DASHES[style["dash"]], "path": _PATHS[style["symbol"]]}
