"""The largest magnitudes of each layer, with the limits of fp16 and bf16."""

import math
from typing import TYPE_CHECKING, Any

from components.plots.marks import marked
from components.plots.style import GROUND, LIMIT, layout, text
from components.precision.text import layer_name, short_layer
from components.text import numbers

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from analyzers.precision_variants.report import PrecisionReport

# log2 of the largest finite value of each format.
FP16, BF16 = math.log2(65504), math.log2(3.3895313892515355e38)
# The axis is broken between the limits of fp16 and bf16: shares of the height below and above the break.
_BELOW, _ABOVE = (0.0, 0.86), (0.93, 1.0)
# Name of each line, and its field in the report.
SIDES = {"values": "forward", "gradients": "backward", "weights": "weights"}


def headroom(report: "PrecisionReport") -> "Figure":
    """log2 of the largest |x| of each layer of the reference: activations, gradients and weights."""
    from plotly.graph_objects import Figure, Scatter

    rows, layers = report.reference.headroom, report.reference.layers
    figure = Figure(layout=layout(360))
    heights = [FP16]
    for index, (name, side) in enumerate(SIDES.items()):
        style = marked(index)
        largest = [getattr(row, f"{side}_max") for row in rows]
        levels = [None if value is None else math.log2(value) for value in largest]
        heights += [level for level in levels if level is not None]
        hover = [
            [
                layer_name(row.layer, layers),
                numbers.magnitude(value),
                text(getattr(row, f"{side}_at") or ""),
                "" if value is None else f"{getattr(row, side):+.1f} bits",
            ]
            for row, value in zip(rows, largest, strict=True)
        ]
        figure.add_trace(
            Scatter(
                x=[row.layer for row in rows],
                y=levels,
                name=name,
                mode="lines+markers",
                line={"color": style["color"], "dash": style["dash"], "width": 2},
                marker={"symbol": style["symbol"], "size": 7, "color": style["color"]},
                customdata=hover,
                cliponaxis=False,
                hovertemplate=f"{name}, %{{customdata[0]}}<br>largest %{{customdata[1]}} in %{{customdata[2]}}<br>fp16 headroom: "
                "%{customdata[3]}<extra></extra>",
            )
        )
    ends = [-1.4, layers + 0.4]
    figure.add_trace(Scatter(x=ends, y=[BF16] * 2, yaxis="y2", mode="lines", line=LIMIT, hoverinfo="skip", showlegend=False))
    figure.add_shape(type="line", xref="paper", x0=0, x1=1, y0=FP16, y1=FP16, line=LIMIT)
    for words, height, axis in (("fp16 limit, 65504", FP16, "y"), ("bf16 limit, 112 bits higher", BF16, "y2")):
        label: dict[str, Any] = {"xref": "paper", "x": 1, "xanchor": "right", "yref": axis, "y": height, "yanchor": "top", "yshift": -2}
        figure.add_annotation(text=words, showarrow=False, bgcolor=GROUND, font={"size": 11}, **label)
    low, high = min(heights) - 1, max(heights) + 2
    step = max(1, round((high - low) / 6))
    ticks = list(range(math.ceil(low / step) * step, math.floor(high) + 1, step))
    figure.update_yaxes(
        title="largest |x|", range=[low, high], domain=_BELOW, tickvals=ticks, ticktext=[numbers.power(tick) for tick in ticks]
    )
    figure.update_layout(
        yaxis2={
            "anchor": "x", "domain": _ABOVE, "range": [BF16 - 3, BF16 + 1], "fixedrange": True, "showgrid": False, "zeroline": False,
            "tickvals": [128], "ticktext": [numbers.power(128)], "tickfont": {"size": 11},
        }
    )  # fmt: skip
    positions = [-1, *range(0, layers, max(1, -(-layers // 8))), layers]
    figure.update_xaxes(
        title="layer", range=ends, tickvals=positions, ticktext=[short_layer(position, layers) for position in positions], showgrid=False
    )
    return figure
