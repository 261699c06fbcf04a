"""Where the changes are, by layer and role; and this pair among the published fine-tunes."""

from __future__ import annotations

import math

import plotly.graph_objects as go

from analyzers.update_sparsity.published import published
from analyzers.update_sparsity.report import LayerRow, SparsityReport
from components.plots.heat_map import COLOUR_BAR, only_value, say_only
from components.plots.marks import error_bars, line
from components.plots.style import COLOURS, GREY, LIMIT, MARKERS, exactly, layout, text
from components.sparsity.text import short
from components.text import numbers

_OUTSIDE = "no layer"
_ROW = 38
# Columns whose numbers fit on a wide screen.
_LABELLED = 16
# Minimum range of the colour scale, so that tiny differences are not stretched over all colours.
_NARROWEST = 0.02


def heat_map(report: SparsityReport) -> go.Figure:
    """A cell per layer and role: the sparsity of its tensors. Tensors outside the layers have their own column on the left."""
    names = [*report.roles][::-1]
    columns, edges = _columns(report)
    places = [_place(row) for row in columns]
    shares = [[None if column is None else column.roles.get(role) for column in columns] for role in names]
    known = [share for row in shares for share in row if share is not None]
    only = only_value(known)
    # a single value is coloured on the full scale of shares
    low, high = _range(known) if only is None else (0.0, 1.0)
    cells = go.Heatmap(
        x=edges,
        y=[text(role) for role in names],
        z=[[_percent(share) for share in row] for row in shares],
        zmin=100 * low,
        zmax=100 * high,
        colorscale="Viridis",
        xgap=1 if len(columns) <= _LABELLED else 0,
        ygap=1,
        hoverongaps=False,
        text=[[_cell(share) for share in row] for row in shares],
        texttemplate="%{text}" if len(columns) <= _LABELLED else None,
        customdata=[[[place, exactly(share)] for place, share in zip(places, row, strict=True)] for row in shares],
        hovertemplate="%{y}, %{customdata[0]}<br>sparsity %{customdata[1]}<extra></extra>",
        colorbar=COLOUR_BAR | {"nticks": 6},
    )
    figure = go.Figure([cells], layout(110 + _ROW * max(2, len(names))))
    middles = [((left + right) / 2, row) for left, right, row in zip(edges, edges[1:], columns, strict=False) if row is not None]
    inside = [(middle, str(row.layer)) for middle, row in middles if row.layer is not None]
    ticks = [(middle, _OUTSIDE) for middle, row in middles if row.layer is None] + inside[:: max(1, math.ceil(len(inside) / 6))]
    figure.update_xaxes(title="layer", tickvals=[at for at, _ in ticks], ticktext=[name for _, name in ticks], tickangle=0)
    figure.update_yaxes(showgrid=False, automargin=True, ticks="")
    figure.update_layout(margin={"l": 20, "r": 12, "t": 8, "b": 44})
    if only is not None:
        say_only(figure, f"Every cell: {exactly(only)}")
    return figure


def roles(report: SparsityReport) -> go.Figure:
    """A point per role, and a line from its least to its most sparse tensor. The axis covers what occurs: changes are often below 1%."""
    known = [(text(role), row, 100 * row.sparsity) for role, row in report.roles.items() if row.sparsity is not None][::-1]
    lows, highs = [_percent(row.min) for _, row, _ in known], [_percent(row.max) for _, row, _ in known]
    shares = [share for _, _, share in known]
    details = [
        [exactly(row.sparsity), exactly(row.min), exactly(row.max), numbers.plural(row.tensors, "tensor"), f"{row.parameters:,}"]
        for _, row, _ in known
    ]
    hover = (
        "sparsity %{customdata[0]}<br>tensors from %{customdata[1]} to %{customdata[2]}<br>%{customdata[3]}, %{customdata[4]} parameters"
    )
    names, bars = [name for name, _, _ in known], error_bars(shares, lows, highs, GREY) | {"thickness": 1.6, "width": 5}
    points = line("", shares, names, 0, hover, details, mode="markers", error_x=bars, hovertemplate="%{y}<br>" + hover + "<extra></extra>")
    figure = go.Figure([points], layout(80 + _ROW * max(2, len(known))))
    ends = [end for end in (*shares, *lows, *highs) if end is not None] or [0.0, 100.0]
    low, high = min(ends), max(ends)
    margin = max(0.5, 0.06 * (high - low))
    figure.update_xaxes(title="sparsity, %", range=[low - margin, high + margin], nticks=6, showgrid=True, gridcolor=GREY)
    figure.update_yaxes(automargin=True, ticks="")
    figure.update_layout(margin={"l": 20, "r": 12, "t": 8, "b": 48})
    return figure


def _columns(report: SparsityReport) -> tuple[list[LayerRow | None], list[float]]:
    """The columns: tensors outside the layers, a gap, and the layers; and the column edges, one more than columns."""
    inside = [row for row in report.layers if row.layer is not None]
    outside = [row for row in report.layers if row.layer is None]
    # wide enough for its label, for any number of layers
    width, gap = max(1.0, len(inside) / 5), max(0.15, len(inside) / 24)
    columns: list[LayerRow | None] = [*outside, *([None] if outside and inside else []), *inside]
    edges = [-gap - width - 0.5, -gap - 0.5] if outside else []
    return columns, edges + [place - 0.5 for place in range(len(inside) + 1)] if inside else edges


def _place(row: LayerRow | None) -> str:
    return "" if row is None else "not in a layer" if row.layer is None else f"layer {row.layer}"


def _range(shares: list[float]) -> tuple[float, float]:
    """The ends of the colour scale: the range of the shares, at least `_NARROWEST` wide and within [0, 1]."""
    low, high = min(shares, default=0.0), max(shares, default=1.0)
    if high - low < _NARROWEST:
        high = min(1.0, (low + high + _NARROWEST) / 2)
        low = max(0.0, high - _NARROWEST)
    return low, high


def _cell(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.3g}"


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


_HERE = "this pair"


def beside(report: SparsityReport) -> go.Figure:
    """A point per published fine-tune, a line per algorithm, and this pair across all of them."""
    rows = published()
    algorithms = sorted({row.algorithm for row in rows}, key=lambda name: (name != "SFT", name))
    figure = go.Figure(layout=layout(300))
    hover = "%{customdata[0]}<br>from %{customdata[1]}<br>%{customdata[3]}sparsity %{customdata[2]}"
    for style, algorithm in enumerate(algorithms):
        found = [row for row in rows if row.algorithm == algorithm]
        details = [[text(row.finetuned), text(row.base), f"{100 * row.sparsity:.1f}%", f"{text(row.data)}<br>"] for row in found]
        marker = {"symbol": MARKERS[style], "size": 10, "color": COLOURS[style], "opacity": 0.85}
        x, y = [100 * row.sparsity for row in found], [text(algorithm)] * len(found)
        figure.add_trace(line(algorithm, x, y, style, hover, details, mode="markers", marker=marker))
    if report.sparsity is not None:
        here, interval = 100 * report.sparsity, report.interval
        low, high = (None, None) if interval is None else (100 * interval.low, 100 * interval.high)
        marker = {"symbol": "star", "size": 16, "color": COLOURS[3], "line": {"width": 1.2, "color": GREY}}
        details = [[text(short(report.request.tuned[-1])), text(short(report.request.base)), f"{here:.6g}%", ""]]
        bars = error_bars([here], [low], [high], COLOURS[3])
        figure.add_trace(line(_HERE, [here], [_HERE], 3, hover, details, mode="markers", marker=marker, error_x=bars))
        figure.add_shape(type="line", yref="paper", x0=here, x1=here, y0=0, y1=1, line=LIMIT, layer="below")
    figure.update_xaxes(title="sparsity in bf16, %", range=[-2, 102], nticks=6)
    figure.update_yaxes(type="category", categoryorder="array", categoryarray=[_HERE, *algorithms[::-1]], automargin=True, ticks="")
    figure.update_layout(margin={"l": 20, "r": 16, "t": 8, "b": 48})
    return figure
