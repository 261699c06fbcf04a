"""Draws several checkpoints: distance to the base and to the previous one, and the overlap of changed weights."""

from __future__ import annotations

import math
from typing import Any

import plotly.graph_objects as go

from analyzers.update_sparsity.report import SparsityReport
from components.plots.marks import COLOUR_BAR, SHARES, line, side_of
from components.plots.style import exactly, layout, legend, text
from components.sparsity.plots import short

# Most checkpoints for which numbers fit into the cells on a narrow screen.
_LABELLED, _LABELLED_NARROW = 10, 4
# Pixels of a panel's side, of its name above it, and of the colour bar above the name.
_SIDE, _NAME, _BAR = 240, 22, 40


def steps(report: SparsityReport) -> go.Figure:
    """Draw the sparsity against the base and the previous checkpoint, by checkpoint; clicking a role's name shows the role."""
    rows, names = report.trajectory, [text(short(name)) for name in report.request.tuned]
    curves: list[tuple[str, list[float | None]]] = [("from the base", [row.sparsity for row in rows])]
    curves.append(("from the one before", [row.step.sparsity for row in rows]))
    curves += [(role, [row.roles.get(role) for row in rows]) for role in dict.fromkeys(role for row in rows for role in row.roles)]
    figure = go.Figure(layout=layout(330))
    for index, (curve, shares) in enumerate(curves):
        details = [[name, exactly(share)] for name, share in zip(names, shares, strict=True)]
        values = [None if share is None else 100 * share for share in shares]
        hidden = {"visible": "legendonly"} if index >= 2 else {}
        hover = "%{customdata[0]}: %{customdata[1]}"
        figure.add_trace(line(curve, list(range(1, len(rows) + 1)), values, index, hover, details, **hidden))
    figure.update_xaxes(title="checkpoint", tickvals=_ticks(len(rows)), range=[0.7, len(rows) + 0.3])
    figure.update_yaxes(title="sparsity, %", nticks=6)
    legend(figure, toggle=True)
    return figure


def overlap(report: SparsityReport) -> go.Figure:
    """Draw the weights changed by both of two checkpoints as a share of those changed by either.

    One panel has the measured shares, the other the shares expected for independent changes.
    """
    from plotly.subplots import make_subplots

    count = len(report.trajectory)
    side = side_of(count, _SIDE)
    base: dict[str, Any] = layout(side + _NAME + _BAR + 48)
    figure = make_subplots(cols=2, subplot_titles=("measured", "if independent"), horizontal_spacing=0.1)
    figure.update_layout(base | {"margin": {"l": 34, "r": 12, "t": _NAME + _BAR, "b": 48}})
    pairs = {tuple(sorted((each.first, each.second))): (each.jaccard, each.independent) for each in report.overlap}
    for panel in (0, 1):
        shares = [[pairs.get((low, high), (None, None))[panel] for low in range(count)] for high in range(count)]
        cells = go.Heatmap(
            x=list(range(1, count + 1)),
            y=list(range(1, count + 1)),
            z=[[None if share is None else 100 * share for share in row] for row in shares],
            coloraxis="coloraxis",
            xgap=1,
            ygap=1,
            hoverongaps=False,
            text=[["" if share is None else f"{100 * share:.3g}" for share in row] for row in shares],
            texttemplate="%{text}" if count <= _LABELLED else None,
            textfont={} if count <= _LABELLED_NARROW else {"size": 9},
            customdata=[[exactly(share) for share in row] for row in shares],
            hovertemplate="checkpoints %{y} and %{x}<br>shared: %{customdata}<extra></extra>",
        )
        figure.add_trace(cells, 1, panel + 1)
        anchor = "x" if panel == 0 else "x2"
        figure.update_yaxes(scaleanchor=anchor, autorange="reversed", constrain="domain", constraintoward="top", row=1, col=panel + 1)
    axes = {**base["xaxis"], "title": "checkpoint", "tickvals": _ticks(count), "tickangle": 0}
    figure.update_xaxes(constrain="domain", **axes)
    figure.update_yaxes(**base["yaxis"] | {"showgrid": False, "tickvals": _ticks(count)})
    bar = COLOUR_BAR | {"y": 1 + _NAME / max(1, side), "nticks": 6}
    figure.update_annotations(font_size=12)
    figure.update_layout(coloraxis={"colorscale": SHARES, "cmin": 0, "cmax": 100, "colorbar": bar})
    return figure


def _ticks(count: int) -> list[int]:
    return list(range(1, count + 1, max(1, math.ceil(count / 12))))
