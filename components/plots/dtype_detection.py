"""The figures of dtype detection: weight magnitudes, and the limits of each format."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from analyzers.dtype_detection import DtypeReport
from analyzers.numerics import BF16, FP8_E4M3, FP16
from components.plots.style import COLOURS, DASHES, GROUND, LIMIT, MARKERS, layout, log_axis, text, threshold
from components.text import numbers

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from analyzers.dtype_detection.report import LayerRow

_ACCENT = "#3b5bdb"
_OUTSIDE = "no layer"


class Mark(NamedTuple):
    """A limit of a format: its position on a log2 axis, and its name."""

    log2: float
    name: str


def marks(report: DtypeReport) -> tuple[Mark, ...]:
    """The limits drawn in the spectrum, in ascending order."""
    named = [
        Mark(math.log2(BF16.smallest_normal), f"bf16 smallest normal {numbers.power(-126)}"),
        Mark(math.log2(FP16.smallest_subnormal), f"fp16 smallest subnormal {numbers.power(-24)}"),
        Mark(math.log2(FP16.smallest_normal), f"fp16 smallest normal {numbers.power(-14)}"),
        Mark(math.log2(FP8_E4M3.smallest_normal), f"fp8 e4m3 normal {numbers.power(-6)}"),
        Mark(math.log2(FP8_E4M3.largest), "fp8 e4m3 largest 448"),
        Mark(math.log2(FP16.largest), "fp16 largest 65504"),
        Mark(math.log2(BF16.largest), "bf16 largest 3.39e38"),
    ]
    low, high = _range(report)
    return tuple(mark for mark in named if low <= mark.log2 <= high)


def why_empty(report: DtypeReport) -> str:
    """The reason why the figures of ``report`` would be empty, as a sentence; empty if they are not."""
    if report.exponents:
        return ""
    counts = report.counts
    what = ", ".join(
        f"{numbers.count(n)} {name}" for n, name in ((counts.nan, "NaN"), (counts.inf, "infinite"), (counts.zero, "zero")) if n
    )
    among = f" ({what})" if what else ""
    return f"Nothing to draw: none of the {numbers.plural(report.values_read, 'value')} read is finite and nonzero{among}."


def spectrum(report: DtypeReport) -> "Figure":
    """Histogram of the exponents of the values read, with the limits of fp16, fp8 and bf16 if they are near."""
    from plotly.graph_objects import Bar, Figure

    total = sum(item.count for item in report.exponents)
    exponents = [item.exponent for item in report.exponents]
    bars = Bar(
        x=[exponent + 0.5 for exponent in exponents],
        y=[100 * item.count / total for item in report.exponents],
        width=0.86,
        marker={"color": _ACCENT},
        customdata=[
            [numbers.power(e), numbers.power(e + 1), f"{item.count:,}"] for e, item in zip(exponents, report.exponents, strict=True)
        ],
        hovertemplate="from %{customdata[0]} to %{customdata[1]}<br>%{customdata[2]} values<br>%{y:.4g}%<extra></extra>",
    )
    low, high = _range(report)
    drawn = marks(report)
    figure = Figure([bars], layout(400))
    # One line of text per mark, stacked above the bars so that names do not collide on a narrow screen. Outermost first, because names
    # point inwards and a mark ends at its name.
    left = [mark for mark in drawn if mark.log2 < low + 0.5 * (high - low)]
    for line, mark in enumerate([*left, *reversed(drawn[len(left) :])]):
        threshold(figure, mark.log2, 1 - 0.42 * line / len(drawn), mark.name, right=mark in left)
    top = max((100 * item.count / total for item in report.exponents), default=1.0)
    step_ticks = 8 if high - low <= 80 else 32
    ticks = list(range(math.ceil(low / step_ticks) * step_ticks, math.floor(high) + 1, step_ticks))
    figure.update_xaxes(
        title="size of the weights", range=[low, high], tickvals=ticks, ticktext=[numbers.power(tick) for tick in ticks], showgrid=False
    )
    figure.update_yaxes(title="% of the values read", range=[0, top * 1.8], rangemode="tozero", nticks=5)
    return figure


def layers(report: DtypeReport) -> "Figure":
    """The largest magnitude in each layer, one trace per role, with the largest fp16 value."""
    from plotly.graph_objects import Figure, Scatter

    figure = Figure(layout=layout(420))
    highest = max((row.layer for row in report.layers if row.layer is not None), default=0)
    # far enough from layer 0 that the labels do not overlap, for any number of layers
    outside = -max(1, math.ceil((highest + 1) / 6))
    for index, (role, rows) in enumerate(_by_role(report)):
        style = index % len(COLOURS)
        # tensors outside the layers are not adjacent to layer 0: the gap prevents a connecting line
        points: list[LayerRow | None] = [*[row for row in rows if row.layer is None], None, *[row for row in rows if row.layer is not None]]
        figure.add_trace(
            Scatter(
                x=[None if row is None else outside if row.layer is None else row.layer for row in points],
                y=[row and row.abs_max for row in points],
                name=text(role),
                mode="lines+markers" if len(rows) > 1 else "markers",
                line={"color": COLOURS[style], "dash": DASHES[style], "width": 1.8},
                marker={"symbol": MARKERS[style], "size": 7, "color": COLOURS[style]},
                customdata=[row and [_place(row), _number(row.abs_max), _number(row.rms), f"{row.tensors:,}"] for row in points],
                hovertemplate=f"{text(role)}, %{{customdata[0]}}<br>largest %{{customdata[1]}}<br>rms %{{customdata[2]}}"
                "<br>tensors: %{customdata[3]}<extra></extra>",
            )
        )
    spacing = max(1, math.ceil((highest + 1) / 6))
    ticks = list(range(0, highest + 1, spacing))
    if any(row.layer is None for row in report.layers):
        ticks.insert(0, outside)
    largest = FP16.largest
    figure.add_shape(type="line", xref="paper", x0=0, x1=1, y0=largest, y1=largest, line=LIMIT, layer="below")
    figure.add_annotation(
        xref="paper",
        x=1,
        xanchor="right",
        y=math.log10(largest),
        yanchor="bottom",
        text="fp16 largest 65504",
        showarrow=False,
        font={"size": 11},
        bgcolor=GROUND,
        borderpad=1,
    )
    shown = [row.abs_max for row in report.layers if row.abs_max]
    low, high = math.log10(min(shown, default=1e-2)) - 0.4, math.log10(max([*shown, largest])) + 0.6
    figure.update_xaxes(title="layer", tickvals=ticks, ticktext=[_OUTSIDE if tick < 0 else str(tick) for tick in ticks], showgrid=False)
    figure.update_yaxes(
        title="largest magnitude",
        **log_axis(low, high),
    )
    figure.update_layout(showlegend=True, legend={"orientation": "h", "x": 0, "y": -0.2, "yanchor": "top", "itemclick": "toggle"})
    return figure


def _range(report: DtypeReport) -> tuple[float, float]:
    """The exponent range drawn: all that occur, and always the fp16 range, so that unused exponents show too."""
    exponents = [item.exponent for item in report.exponents]
    return min(-26, min(exponents, default=0) - 1), max(18, max(exponents, default=0) + 2)


def _by_role(report: DtypeReport) -> "Iterator[tuple[str, list[LayerRow]]]":
    roles = dict.fromkeys(row.role for row in report.layers)
    for role in roles:
        rows = [row for row in report.layers if row.role == role and row.abs_max]
        if rows:
            yield role, sorted(rows, key=lambda row: -1 if row.layer is None else row.layer)


def _place(row: "LayerRow") -> str:
    return "not in a layer" if row.layer is None else f"layer {row.layer}"


def _number(value: float | None) -> str:
    return numbers.NOTHING if value is None else repr(value)
