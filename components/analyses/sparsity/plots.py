"""Draws the figures of update sparsity: where the changes are, how large they are, and how they grow over a run."""

from __future__ import annotations

import math

import plotly.graph_objects as go

from analyzers.comparison.sparsity.report import SparsityReport
from analyzers.comparison.sparsity.rows import Bin
from components.plots.marks import cells_by_layer, line, percent
from components.plots.style import COLOURS, exactly, layout, legend, text, threshold
from components.text import numbers


def heat_map(report: SparsityReport) -> go.Figure | None:
    """Draw the sparsity of tensors in a cell per layer and role. Tensors outside the layers have the first column."""
    layers = sorted(report.layers, key=lambda row: -1 if row.layer is None else row.layer)
    shares = {role: [percent(row.roles.get(role)) for row in layers] for role in report.roles}
    return cells_by_layer(shares, [row.layer for row in layers], "sparsity", strong="low")


# Names and log2 of the smallest and the largest relative spacing of bf16 values; the names are short for narrow screens.
_THRESHOLDS = ((-8, "smallest ULP"), (-7, "largest ULP"))
# Range of the relative updates drawn, in binades: no update exceeds twice the value's size.
_LEAST, _MOST = -40.0, 1.0


def relative(report: SparsityReport) -> go.Figure | None:
    """Draw a stacked histogram of relative updates: values that changed in bf16 and values that did not."""
    bins = [row for row in report.magnitudes.relative.histogram if row.count and row.low > 0]
    if not bins:
        return None
    changed = [row.changed_share for row in bins]
    traces = [_bars(bins, [row.changed for row in bins], changed, "changed in bf16", COLOURS[0])]
    if any(row.count > row.changed for row in bins):
        others = [row.share - row.changed_share for row in bins]
        traces.append(_bars(bins, [row.count - row.changed for row in bins], others, "the same in bf16", COLOURS[1]))
    figure = go.Figure(traces, layout(360))
    top = max(100 * row.share / _width(row) for row in bins)
    low = min(max(_LEAST, min(math.log2(row.low) for row in bins)) - 0.5, _THRESHOLDS[0][0] - 2)
    right = _THRESHOLDS[0][0] - low < 0.5 * (_MOST - low)
    for number, (exponent, name) in enumerate(_THRESHOLDS if right else _THRESHOLDS[::-1]):
        threshold(figure, exponent, 1 - 0.09 * number, f"{name}, {numbers.power(exponent)}", right)
    step = 2 if _MOST - low <= 14 else 4 if _MOST - low <= 28 else 8
    ticks = list(range(math.ceil(low / step) * step, 1, step))
    figure.update_layout(barmode="stack", bargap=0)
    powers = [numbers.power(tick) for tick in ticks]
    figure.update_xaxes(title="|update| / size of the value", range=[low, _MOST], tickvals=ticks, ticktext=powers)
    figure.update_yaxes(title="% of the values, per doubling", range=[0, top * 1.35], nticks=5)
    return legend(figure)


def _bars(bins: list[Bin], counts: list[int], shares: list[float], name: str, colour: str) -> go.Bar:
    ends = [(math.log2(row.low), math.log2(row.high)) for row in bins]
    hover = f"from %{{customdata[0]}}% to %{{customdata[1]}}% of its size<br>%{{customdata[2]}} values read, {name}<extra></extra>"
    return go.Bar(
        x=[(low + high) / 2 for low, high in ends],
        y=[100 * share / _width(row) for row, share in zip(bins, shares, strict=True)],
        width=[0.92 * (high - low) for low, high in ends],
        name=name,
        marker={"color": colour},
        customdata=[[f"{100 * row.low:.3g}", f"{100 * row.high:.3g}", f"{count:,}"] for row, count in zip(bins, counts, strict=True)],
        hovertemplate=hover,
    )


def _width(row: Bin) -> float:
    """Return the width of a bin in binades. Heights are densities: bins of equal linear width differ in binades."""
    return math.log2(row.high / row.low)


def steps(report: SparsityReport) -> go.Figure | None:
    """Draw the sparsity against the base and the previous checkpoint, by checkpoint; clicking a role's name shows the role."""
    rows = report.trajectory
    if not rows:
        return None
    curves: list[tuple[str, list[float | None]]] = [("from the base", [row.sparsity for row in rows])]
    curves.append(("from the one before", [row.step.sparsity for row in rows]))
    curves += [(role, [row.roles.get(role) for row in rows]) for role in dict.fromkeys(role for row in rows for role in row.roles)]
    figure = go.Figure(layout=layout(330))
    numbered = list(range(len(rows)))
    for style, (name, shares) in enumerate(curves):
        details = [[text(row.ref), exactly(share)] for row, share in zip(rows, shares, strict=True)]
        hidden = {"visible": "legendonly"} if style >= 2 else {}
        hover = "%{customdata[0]}: %{customdata[1]}"
        figure.add_trace(line(name, numbered, list(map(percent, shares)), style, hover, details, **hidden))
    figure.update_xaxes(title="checkpoint", tickvals=numbered[:: math.ceil(len(rows) / 12)], range=[-0.3, len(rows) - 0.7])
    figure.update_yaxes(title="sparsity, %", nticks=6)
    return legend(figure)
