"""The sparsity of this pair compared with those of published fine-tunes."""

from __future__ import annotations

import plotly.graph_objects as go

from analyzers.update_sparsity.published import published
from analyzers.update_sparsity.report import SparsityReport
from components.plots.marks import error_bars, line
from components.plots.style import COLOURS, GREY, LIMIT, MARKERS, layout, text
from components.sparsity.text import short

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
