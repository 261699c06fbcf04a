"""Draws lines with markers and error bars, logarithmic axes with edges for 0 and overflow, rows of marks, and heat maps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import plotly.graph_objects as go

from analyzers.core.tensor_words import layer_name
from components.plots.style import COLOURS, DASHES, MARKERS, label, layout, legend, log_axis, text

# Padding beyond the smallest and the largest value, as a factor; range of an axis without values.
_PADDING = 1.6
_NO_VALUES = (1e-3, 1.0)
_ROW = 24
# Most characters next to the axis on a narrow screen.
_NAME = 26
# Height of a row of cells, most columns whose numbers fit on a wide screen, and the narrowest colour scale in percent, so that tiny
# differences are not stretched over all colours.
_CELL, _LABELLED, _NARROWEST = 38, 16, 2.0


def marked(index: int) -> dict[str, Any]:
    """Return colour, dash and marker of series ``index``. When colours repeat, dashes and markers shift by one."""
    again = index + index // len(COLOURS)
    return {"color": COLOURS[index % len(COLOURS)], "dash": DASHES[again % len(DASHES)], "symbol": MARKERS[again % len(MARKERS)]}


def shortened(name: str, longest: int) -> str:
    """Truncate a long name in the middle: its beginning and end are the most informative."""
    return name if len(name) <= longest else f"{name[: (longest - 1) // 2]}…{name[-(longest // 2) :]}"


def line(
    name: str,
    x: Sequence[float | None],
    y: Sequence[float | None] | Sequence[str],
    style: int,
    hover: str,
    details: Sequence[Sequence[str] | None] = (),
    /,
    **changes: Any,
) -> go.Scatter:
    """Make a line with markers in style ``style``. hover: text below the name, with ``details`` as customdata; changes: other settings."""
    drawn = marked(style)
    settings = {
        "mode": "lines+markers",
        "line": {"color": drawn["color"], "dash": drawn["dash"], "width": 2},
        "marker": {"symbol": drawn["symbol"], "size": 7, "color": drawn["color"]},
        "name": text(name),
        "cliponaxis": False,
        "hovertemplate": f"{text(name)}<br>{hover}<extra></extra>",
    }
    return go.Scatter(x=list(x), y=list(y), customdata=list(details), **settings | changes)


def error_bars(values: Sequence[float | None], lows: Sequence[float | None], highs: Sequence[float | None], color: str) -> dict[str, Any]:
    """Return settings of error bars from ``lows`` to ``highs``; a bar with an end of None has length 0."""

    def apart(ends: Sequence[float | None], starts: Sequence[float | None]) -> list[float]:
        return [0.0 if end is None or start is None else max(0.0, end - start) for end, start in zip(ends, starts, strict=True)]

    sides = {"array": apart(highs, values), "arrayminus": apart(values, lows)}
    return {"type": "data", "symmetric": False, "color": color, "thickness": 1.2, "width": 3, **sides}


def log_scale(
    figure: go.Figure, letter: Literal["x", "y"], values: Iterable[float | None], title: str, zero: str = "exact"
) -> Callable[[float | None], float | None]:
    """Make an axis logarithmic, and return the function that places a value >= 0 on it.

    0 and infinity are at the edges of the figure, which are then labelled ``zero`` and "overflow"; None is nowhere.
    """
    every = {value for value in values if value is not None}
    inner = every - {0.0, math.inf} or set(_NO_VALUES)
    edges = {0.0: min(inner) / _PADDING**2, math.inf: max(inner) * _PADDING**2}
    low, high = (edges[edge] if edge in every else end for edge, end in ((0.0, min(inner) / _PADDING), (math.inf, max(inner) * _PADDING)))
    figure.update_layout({f"{letter}axis": {"title": {"text": title}, **log_axis(math.log10(low), math.log10(high))}})
    for edge, name, end in ((0.0, zero, 0), (math.inf, "overflow", 1)):
        if edge in every and letter == "y":
            label(figure, name, xref="paper", x=1, xanchor="right", yref="paper", y=end, yanchor="top" if end else "bottom")
        elif edge in every:
            label(figure, name, yref="paper", y=1, yanchor="bottom", xref="paper", x=end, xanchor="right" if end else "left")
            figure.update_layout(margin_t=24)
    return lambda value: None if value is None else edges.get(value, value)


def mark_rows(
    measured: Mapping[str, Mapping[str, float | None]],
    names: Sequence[str],
    title: str,
    formatted: Callable[[float], str],
    short: Callable[[str], str] = str,
) -> go.Figure:
    """Draw a row for each of ``names``, with a mark for each measure. measured: measure -> row -> value >= 0 (see `log_scale`).

    title: of the axis; formatted: formats a value for the hover text; short: a row's name for the axis.
    """
    figure = go.Figure(layout=layout(72 + _ROW * max(1, len(names))))
    place = log_scale(figure, "x", [value for rows in measured.values() for value in rows.values()], title)
    for style, (measure, rows) in enumerate(measured.items()):
        drawn = [(row, name, value) for row, name in enumerate(names) if (value := rows.get(name)) is not None]
        details = [[text(name), "not finite" if value == math.inf else formatted(value)] for _, name, value in drawn]
        x, y = [place(value) for _, _, value in drawn], [row for row, _, _ in drawn]
        figure.add_trace(line(measure, x, y, style, "%{customdata[0]}: %{customdata[1]}", details, mode="markers"))
    figure.update_xaxes(showgrid=True)
    ticks = [text(shortened(short(name), _NAME)) for name in names]
    ends = [len(names) - 0.4, -0.6]
    figure.update_yaxes(tickvals=list(range(len(names))), ticktext=ticks, range=ends, showgrid=False, automargin=True)
    return legend(figure)


COLOUR_BAR: dict[str, Any] = {"orientation": "h", "y": 1, "yanchor": "bottom", "thickness": 8, "len": 1, "outlinewidth": 0, "ypad": 7}
# Shares, from none to all: grey to blue, with as much contrast to the text of a cell on the light card as on the dark one.
SHARES = ((0.0, "rgba(124,130,141,0.25)"), (0.5, "rgba(59,111,224,0.4)"), (1.0, "rgba(59,111,224,0.75)"))


def percent(share: float | None) -> float | None:
    """Return a share in percent, None where it is not known."""
    return None if share is None else 100 * share


def cells_by_layer(
    shares: Mapping[str, Sequence[float | None]], layers: Sequence[int | None], title: str, strong: Literal["low", "high"]
) -> go.Figure | None:
    """Draw shares in percent, by role and layer, in a heat map; None if there are none. strong: which end has the strong colour."""
    known = [share for row in shares.values() for share in row if share is not None]
    if not known:
        return None
    low = max(0.0, min(min(known), max(known) - _NARROWEST))
    cells = go.Heatmap(
        x=["no layer" if layer is None else str(layer) for layer in layers],
        y=[text(role) for role in shares],
        z=list(shares.values()),
        zmin=low,
        zmax=max(max(known), low + _NARROWEST),
        colorscale=[(1 - share, colour) for share, colour in reversed(SHARES)] if strong == "low" else list(SHARES),
        xgap=1 if len(layers) <= _LABELLED else 0,
        ygap=1,
        hoverongaps=False,
        text=[["" if share is None else f"{share:.3g}" for share in row] for row in shares.values()],
        texttemplate="%{text}" if len(layers) <= _LABELLED else None,
        customdata=[[layer_name(layer) for layer in layers]] * len(shares),
        hovertemplate=f"%{{y}}, %{{customdata}}<br>{title} %{{z:.6g}}%<extra></extra>",
        colorbar=COLOUR_BAR | {"nticks": 6},
    )
    figure = go.Figure([cells], layout(110 + _CELL * max(2, len(shares))))
    figure.update_xaxes(title="layer", type="category", tickangle=0, nticks=8)
    figure.update_yaxes(type="category", autorange="reversed", showgrid=False, automargin=True)
    return figure.update_layout(margin={"l": 20, "t": 8})
