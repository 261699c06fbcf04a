"""The sparsity of this pair compared with those of published fine-tunes."""

from typing import TYPE_CHECKING

from analyzers.update_sparsity.published import published
from analyzers.update_sparsity.report import SparsityReport
from components.plots.style import COLOURS, LIMIT, MARKERS, layout, text
from components.sparsity.text import short

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_HERE = "this pair"


def beside(report: SparsityReport) -> "Figure":
    """A point per published fine-tune, a line per algorithm, and this pair across all of them."""
    from plotly.graph_objects import Figure, Scatter

    rows = published()
    algorithms = sorted({row.algorithm for row in rows}, key=lambda name: (name != "SFT", name))
    figure = Figure(layout=layout(300))
    for style, algorithm in enumerate(algorithms):
        found = [row for row in rows if row.algorithm == algorithm]
        figure.add_trace(
            Scatter(
                x=[100 * row.sparsity for row in found],
                y=[text(algorithm)] * len(found),
                name=text(algorithm),
                mode="markers",
                marker={"symbol": MARKERS[style], "size": 10, "color": COLOURS[style], "opacity": 0.85},
                customdata=[[text(row.base), text(row.finetuned), text(row.data), f"{100 * row.sparsity:.1f}%"] for row in found],
                hovertemplate="%{customdata[1]}<br>from %{customdata[0]}<br>%{y}, %{customdata[2]}<br>"
                "sparsity %{customdata[3]}<extra></extra>",
            )
        )
    if report.sparsity is not None:
        here, interval = 100 * report.sparsity, report.interval
        between = {} if interval is None else {"array": [100 * interval.high - here], "arrayminus": [here - 100 * interval.low]}
        figure.add_trace(
            Scatter(
                x=[here],
                y=[_HERE],
                name=_HERE,
                mode="markers",
                marker={"symbol": "star", "size": 16, "color": COLOURS[3], "line": {"width": 1.2, "color": "#7c828d"}},
                error_x={"type": "data", "symmetric": False, "color": COLOURS[3], **between, "visible": bool(between)},
                customdata=[[text(short(report.request.tuned[-1])), text(short(report.request.base)), f"{here:.6g}%"]],
                hovertemplate="%{customdata[0]}<br>from %{customdata[1]}<br>sparsity %{customdata[2]}<extra></extra>",
                cliponaxis=False,
            )
        )
        figure.add_shape(type="line", yref="paper", x0=here, x1=here, y0=0, y1=1, line=LIMIT, layer="below")
    figure.update_xaxes(title="sparsity in bf16, %", range=[-2, 102], nticks=6, showgrid=False)
    figure.update_yaxes(type="category", categoryorder="array", categoryarray=[_HERE, *algorithms[::-1]], automargin=True, ticks="")
    figure.update_layout(margin={"l": 20, "r": 16, "t": 8, "b": 48})
    return figure
