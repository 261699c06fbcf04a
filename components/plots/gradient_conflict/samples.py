"""Between samples: the cosines of all pairs, of whole gradients and of one neuron, and each sample's share of the squared norm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from analyzers.gradient_conflict.report import ConflictReport
from components.conflict.text import excerpts, unit_name
from components.plots.heat_map import COLOUR_BAR, only_value, say_only, square
from components.plots.style import COLOURS, GREY, exactly, layout, level, text
from components.text import numbers

# From conflict to agreement, transparent at 0. Most cosines are small, so colours change fastest near 0.
DIVERGING = (
    (0.0, "rgb(200,98,10)"), (0.25, "rgba(200,98,10,0.85)"), (0.45, "rgba(200,98,10,0.4)"), (0.5, "rgba(124,130,141,0.05)"),
    (0.55, "rgba(59,111,224,0.4)"), (0.75, "rgba(59,111,224,0.85)"), (1.0, "rgb(59,111,224)"),
)  # fmt: skip
# Characters of a label that fit next to an axis on a narrow screen.
_LINE = 40
# Up to this many samples, cells are large enough for gaps between them.
_GAPS = 32
# Pixels above the colour bar for the menu.
_MENU = 48


def cosines(report: ConflictReport) -> go.Figure:
    """(S, S) cosines between whole gradients."""
    figure = _heat_map(report.cosines.model, _names(report))
    only = only_value((value for row in figure.data[0].z for value in row), digits=4)
    if only is not None:
        say_only(figure, f"Every pair of samples: cosine {only:.4g}")
    return figure


def neurons(report: ConflictReport) -> go.Figure:
    """(S, S) cosines of the most and the least conflicted neurons, shown one at a time."""
    kept = report.neurons
    if kept is None or not kept.cosines:
        raise ValueError("the report has no cosines of neurons")
    rates = {unit_name(row): row.conflict_rate for row in (*kept.most, *kept.least)}
    figure = _heat_map(kept.cosines[0].values, _names(report))
    buttons: list[dict[str, Any]] = []
    for each in kept.cosines:
        rate = rates.get(unit_name(each))
        label = unit_name(each) + ("" if rate is None else f": {100 * rate:.3g}% in conflict")
        buttons.append({"label": label, "method": "restyle", "args": [{"z": [_without_diagonal(each.values)]}]})
    menu = {"buttons": buttons, "direction": "down", "showactive": True, "bgcolor": "rgba(0,0,0,0)", "bordercolor": GREY}
    menu |= {"x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom", "pad": {"b": 44, "l": 0, "r": 0, "t": 0}}
    figure.update_layout(updatemenus=[menu], height=figure.layout.height + _MENU, margin_t=figure.layout.margin.t + _MENU)
    return figure


def dominance(report: ConflictReport) -> go.Figure:
    """A bar per sample: its share of the sum of |g|^2; a line at equal shares."""
    rows = report.dominance.samples
    details = [
        [
            name,
            exactly(row.share),
            numbers.magnitude(row.cosine_to_rest),
            numbers.NOTHING if row.leave_one_out_cosine is None else f"{row.leave_one_out_cosine:.4f}",
            numbers.share(row.neurons_led),
        ]
        for row, name in zip(rows, _names(report), strict=True)
    ]
    bars = go.Bar(
        x=[row.sample for row in rows],
        y=[None if row.share is None else 100 * row.share for row in rows],
        marker={"color": COLOURS[0]},
        customdata=details,
        hovertemplate="%{customdata[0]}<br>%{customdata[1]} of the squared norm<br>cosine to the rest %{customdata[2]}"
        "<br>cosine of the mean without it %{customdata[3]}<br>largest in %{customdata[4]} of the units<extra></extra>",
    )
    figure = go.Figure([bars], layout(280))
    level(figure, 100 / len(rows), "equal shares")
    figure.update_shapes(layer="above")
    figure.update_xaxes(title="sample", nticks=10)
    figure.update_yaxes(title="share of the squared norm, %", nticks=5, rangemode="tozero")
    return figure


def _heat_map(values: Sequence[Sequence[float | None]], names: Sequence[str]) -> go.Figure:
    """(S, S) cosines between samples named ``names``; the diagonal is empty."""
    gap = int(len(names) <= _GAPS)
    cells = go.Heatmap(
        x=names,
        y=names,
        z=_without_diagonal(values),
        zmin=-1,
        zmid=0,
        zmax=1,
        colorscale=[list(stop) for stop in DIVERGING],
        hoverongaps=False,
        hovertemplate="%{y}<br>%{x}<br>cosine %{z:.4f}<extra></extra>",
        colorbar=COLOUR_BAR | {"tickvals": [-1, -0.5, 0, 0.5, 1], "tickangle": 0},
        xgap=gap,
        ygap=gap,
    )
    figure = square(cells, len(names))
    ticks = list(range(0, len(names), max(1, math.ceil(len(names) / 10))))
    axis = {"title": "sample", "type": "category", "tickvals": ticks, "ticktext": [str(tick) for tick in ticks], "tickangle": 0}
    return figure.update_xaxes(**axis).update_yaxes(**axis)


def _without_diagonal(values: Sequence[Sequence[float | None]]) -> list[list[float | None]]:
    return [[None if row == column else value for column, value in enumerate(line)] for row, line in enumerate(values)]


def _names(report: ConflictReport) -> list[str]:
    """For each sample its number and the beginning of its text in two lines; all distinct."""
    names = []
    for number, excerpt in enumerate(excerpts(report, 2 * _LINE)):
        cut = excerpt.rfind(" ", 0, _LINE) if len(excerpt) > _LINE else -1
        first, rest = (excerpt[:cut], excerpt[cut + 1 :]) if cut > 0 else (excerpt[:_LINE], excerpt[_LINE:])
        names.append("<br>".join([f"{number}: {text(first)}", *([text(rest)] if rest else [])]))
    return names
