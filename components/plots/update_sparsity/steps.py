"""Several checkpoints: distance to the base and to the previous one, and the overlap of changed weights."""

import math
from typing import TYPE_CHECKING, Any

from analyzers.update_sparsity.report import SparsityReport
from components.plots.heat_map import COLOUR_BAR, square
from components.plots.style import COLOURS, DASHES, MARKERS, exactly, layout, text
from components.sparsity.text import short, tuned_names

if TYPE_CHECKING:
    from plotly.graph_objects import Figure, Scatter

_LABELLED = 10


def steps(report: SparsityReport) -> "Figure":
    """Sparsity against the base and the previous checkpoint, by checkpoint; clicking a role's name shows it."""
    from plotly.graph_objects import Figure

    rows = report.trajectory
    figure = Figure(layout=layout(420))
    figure.add_trace(_line(report, [row.sparsity for row in rows], "from the base", 0))
    figure.add_trace(_line(report, [row.step.sparsity for row in rows], "from the one before", 1))
    roles = dict.fromkeys(role for row in rows for role in row.roles)
    for index, role in enumerate(roles, 2):
        figure.add_trace(_line(report, [row.roles.get(role) for row in rows], role, index, visible="legendonly"))
    spacing = max(1, math.ceil(len(rows) / 12))
    ticks = list(range(1, len(rows) + 1, spacing))
    figure.update_xaxes(title="checkpoint", tickvals=ticks, range=[0.7, len(rows) + 0.3], showgrid=False)
    figure.update_yaxes(title="sparsity, %", nticks=6)
    figure.update_layout(showlegend=True, legend={"orientation": "h", "x": 0, "y": -0.26, "yanchor": "top", "itemclick": "toggle"})
    return figure


def overlap(report: SparsityReport) -> "Figure":
    """The weights changed by both of two checkpoints as a share of those changed by either.

    Below the diagonal the measured overlap, above it the overlap expected if the changes were independent.
    """
    from plotly.graph_objects import Heatmap

    count = len(report.trajectory)
    found: list[list[float | None]] = [[None] * count for _ in range(count)]
    said = [[["", ""] for _ in range(count)] for _ in range(count)]
    for each in report.overlap:
        low, high = sorted((each.first, each.second))
        found[high][low], found[low][high] = each.jaccard, each.independent
        words = [exactly(each.jaccard), exactly(each.independent)]
        said[high][low] = said[low][high] = words
    numbered = list(range(1, count + 1))
    cells = Heatmap(
        x=numbered,
        y=numbered,
        z=[[None if share is None else 100 * share for share in line] for line in found],
        zmin=0,
        zmax=100,
        colorscale="Viridis",
        xgap=1,
        ygap=1,
        hoverongaps=False,
        text=[["" if share is None else f"{100 * share:.3g}" for share in line] for line in found],
        texttemplate="%{text}" if count <= _LABELLED else None,
        customdata=said,
        hovertemplate="checkpoints %{y} and %{x}<br>shared: %{customdata[0]}<br>if independent: %{customdata[1]}<extra></extra>",
        colorbar=COLOUR_BAR | {"nticks": 6},
    )
    figure = square(cells, count)
    spacing = max(1, math.ceil(count / 12))
    ticks = numbered[::spacing]
    figure.update_xaxes(title="above the diagonal: if independent", tickvals=ticks, tickangle=0)
    figure.update_yaxes(title="below: as found", tickvals=ticks)
    return figure


def _line(report: SparsityReport, shares: list[float | None], name: str, index: int, **changes: Any) -> "Scatter":
    from plotly.graph_objects import Scatter

    style = index % len(COLOURS)
    return Scatter(
        x=list(range(1, len(shares) + 1)),
        y=[None if share is None else 100 * share for share in shares],
        name=text(name),
        mode="lines+markers",
        line={"color": COLOURS[style], "dash": DASHES[style], "width": 2 if index < 2 else 1.4},
        marker={"symbol": MARKERS[style], "size": 8, "color": COLOURS[style]},
        customdata=[[text(short(called)), exactly(share)] for called, share in zip(tuned_names(report), shares, strict=True)],
        hovertemplate=f"%{{customdata[0]}}<br>{text(name)}: %{{customdata[1]}}<extra></extra>",
        **changes,
    )
