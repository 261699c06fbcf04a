"""Cosines between all samples' gradients of one neuron, chosen from a menu."""

from typing import TYPE_CHECKING, Any

from components.conflict.text import unit_name
from components.plots.gradient_conflict.samples import named, samples_heat_map

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from analyzers.gradient_conflict.report import ConflictReport

# Pixels above the colour bar for the menu.
_MENU = 48


def neurons(report: "ConflictReport") -> "Figure":
    """(S, S) cosines of the most and the least conflicted neurons, shown one at a time."""
    kept = report.neurons
    if kept is None or not kept.cosines:
        raise ValueError("the report has no cosines of neurons")
    rates = {unit_name(row): row.conflict_rate for row in (*kept.most, *kept.least)}
    figure = samples_heat_map(kept.cosines[0].values, named(report))
    buttons: list[dict[str, Any]] = []
    for each in kept.cosines:
        values = [[None if row == column else value for column, value in enumerate(line)] for row, line in enumerate(each.values)]
        rate = rates.get(unit_name(each))
        label = unit_name(each) + ("" if rate is None else f": {100 * rate:.3g}% in conflict")
        buttons.append({"label": label, "method": "restyle", "args": [{"z": [values]}]})
    place = {"x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom", "pad": {"b": 44, "l": 0, "r": 0, "t": 0}}
    menu = {"buttons": buttons, "direction": "down", "showactive": True, "bgcolor": "rgba(0,0,0,0)", "bordercolor": "#7c828d"}
    figure.update_layout(updatemenus=[menu | place], height=figure.layout.height + _MENU, margin_t=figure.layout.margin.t + _MENU)
    return figure
