"""Rows of named items with a mark per measure, on a logarithmic axis."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from components.plots.marks import LogAxis, marked, shortened
from components.plots.style import layout, text

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_ROW = 24
# Characters that fit next to the axis on a narrow screen.
_NAME = 26


def mark_rows(
    found: Mapping[str, Mapping[str, float | None]],
    names: Sequence[str],
    title: str,
    said: Callable[[float], str],
    short: Callable[[str], str] = str,
) -> "Figure":
    """found: name of a mark -> row -> value >= 0; names: the rows. Zeros are drawn at the left edge; missing values are not drawn.

    title: of the axis; said: formats a value for the hover text; short: formats a row's name for the axis.
    """
    from plotly.graph_objects import Figure, Scatter

    axis = LogAxis.of(value for rows in found.values() for value in rows.values())
    figure = Figure(layout=layout(72 + _ROW * max(1, len(names))))
    for index, (name, rows) in enumerate(found.items()):
        style = marked(index)
        drawn = [(place, row, value) for place, row in enumerate(names) if (value := rows.get(row)) is not None]
        figure.add_trace(
            Scatter(
                x=[value or axis.edges[0] for _, _, value in drawn],
                y=[place for place, _, _ in drawn],
                name=name,
                mode="markers",
                marker={
                    "symbol": [style["symbol"] if value else "triangle-left-open" for _, _, value in drawn],
                    "size": 8,
                    "color": style["color"],
                },
                customdata=[[text(row), said(value)] for _, row, value in drawn],
                cliponaxis=False,
                hovertemplate=f"%{{customdata[0]}}<br>{text(name)}: %{{customdata[1]}}<extra></extra>",
            )
        )
    figure.update_xaxes(title=title, showgrid=True, gridcolor="#7c828d", **axis.settings())
    figure.update_yaxes(
        tickvals=list(range(len(names))),
        ticktext=[text(shortened(short(name), _NAME)) for name in names],
        range=[len(names) - 0.4, -0.6],
        showgrid=False,
        automargin=True,
    )
    return figure
