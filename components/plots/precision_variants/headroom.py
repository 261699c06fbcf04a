"""The largest magnitudes of each layer, with the limits of fp16 and bf16."""

from __future__ import annotations

import math

import plotly.graph_objects as go

from analyzers.precision_variants.report import PrecisionReport
from components.plots.marks import line
from components.plots.style import LIMIT, label, layout, level, text
from components.precision.text import layer_name, short_layer
from components.text import numbers

# log2 of the largest finite value of each format.
FP16, BF16 = math.log2(65504), math.log2(3.3895313892515355e38)
# The axis is broken between the limits of fp16 and bf16: shares of the height below and above the break.
_BELOW, _ABOVE = (0.0, 0.86), (0.93, 1.0)
# Name of each line, and its field in the report.
SIDES = {"values": "forward", "gradients": "backward", "weights": "weights"}


def headroom(report: PrecisionReport) -> go.Figure:
    """log2 of the largest |x| of each layer of the reference: activations, gradients and weights."""
    rows, layers = report.reference.headroom, report.reference.layers
    figure = go.Figure(layout=layout(360))
    heights = [FP16]
    hover = "%{customdata[0]}<br>largest %{customdata[1]} in %{customdata[2]}<br>fp16 headroom: %{customdata[3]}"
    for index, (name, side) in enumerate(SIDES.items()):
        largest = [getattr(row, f"{side}_max") for row in rows]
        levels = [math.log2(value) if value else None for value in largest]
        heights += [each for each in levels if each is not None]
        details = [
            [
                layer_name(row.layer, layers),
                numbers.magnitude(value),
                text(getattr(row, f"{side}_at") or ""),
                "" if (bits := getattr(row, side)) is None else f"{bits:+.1f} bits",
            ]
            for row, value in zip(rows, largest, strict=True)
        ]
        figure.add_trace(line(name, [row.layer for row in rows], levels, index, hover, details))
    ends = [-1.4, layers + 0.4]
    figure.add_trace(go.Scatter(x=ends, y=[BF16] * 2, yaxis="y2", mode="lines", line=LIMIT, hoverinfo="skip", showlegend=False))
    level(figure, FP16, "fp16 limit, 65504")
    right = {"xref": "paper", "x": 1, "xanchor": "right"}
    label(figure, "bf16 limit, 112 bits higher", yref="y2", y=BF16, yanchor="top", yshift=-2, **right)
    low, high = min(heights) - 1, max(heights) + 2
    step = max(1, round((high - low) / 6))
    ticks = list(range(math.ceil(low / step) * step, math.floor(high) + 1, step))
    powers = [numbers.power(tick) for tick in ticks]
    figure.update_yaxes(title="largest |x|", range=[low, high], domain=_BELOW, tickvals=ticks, ticktext=powers)
    above = {"anchor": "x", "domain": _ABOVE, "range": [BF16 - 3, BF16 + 1], "tickvals": [128], "ticktext": [numbers.power(128)]}
    figure.update_layout(yaxis2=above | {"fixedrange": True, "showgrid": False, "zeroline": False, "tickfont": {"size": 11}})
    places = [-1, *range(0, layers, max(1, -(-layers // 8))), layers]
    figure.update_xaxes(title="layer", range=ends, tickvals=places, ticktext=[short_layer(place, layers) for place in places])
    return figure
