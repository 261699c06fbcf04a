"""Draws models among those with known training precision: largest magnitude against largest tensor norm."""

from __future__ import annotations

import math
from collections.abc import Sequence

import plotly.graph_objects as go

from analyzers.dtype_detection import DtypeReport
from analyzers.dtype_detection.labelled_models import labelled_extremes
from analyzers.dtype_detection.rule_of_thumb import PUBLISHED
from components.plots.marks import line
from components.plots.style import COLOURS, GREY, LIMIT, MARKERS, label, layout, legend, log_axis, text
from components.text import numbers, plain_text

_PRECISIONS = ("fp16", "bf16", "fp32")
# Points closer than this, in decades, share one label.
_NEAR = 0.25
# Share of the width next to an edge in which labels are left- or right-aligned, since centred ones would overlap the axis.
_EDGE = 0.2
_HOVER = "%{customdata[0]}<br>%{customdata[3]}<br>largest %{customdata[1]}<br>norm %{customdata[2]}<extra></extra>"


def among_models(reports: Sequence[DtypeReport], rows: Sequence[int] = ()) -> go.Figure:
    """Draw the labelled models as points, coloured and shaped by precision, with ``reports`` highlighted, and the rule's thresholds.

    A single report is named; several are numbered by their ``rows`` in the comparison table, by default 1, 2, ... Reports without a finite
    nonzero weight are not drawn.
    """
    figure = go.Figure(layout=layout(380))
    for style, precision in enumerate(_PRECISIONS):
        figure.add_trace(_labelled(precision, style))
    placed = [(row, report) for row, report in zip(rows or range(1, len(reports) + 1), reports, strict=True) if _has_a_place(report)]
    norms = [model.norm_max for model in labelled_extremes()] + [report.extremes.norm_max or 1.0 for _, report in placed]
    sizes = [model.abs_max for model in labelled_extremes()] + [report.extremes.abs_max or 1.0 for _, report in placed]
    low_x, high_x = _decades(norms)
    low_y, high_y = _decades(sizes)
    size, norm = (numbers.power(round(math.log10(limit)), 10) for limit in PUBLISHED)
    if placed:
        figure.add_trace(_here(placed, bool(rows) or len(reports) > 1, (low_x, high_x), high_y))
    figure.add_shape(type="line", xref="paper", x0=0, x1=1, y0=PUBLISHED.abs_max, y1=PUBLISHED.abs_max, line=LIMIT)
    figure.add_shape(type="line", yref="paper", y0=0, y1=1, x0=PUBLISHED.norm_max, x1=PUBLISHED.norm_max, line=LIMIT)
    # above the figure, where it covers no model
    details = f"dashed: above {size}: bf16;<br>below: fp16 left of {norm}, fp32 right"
    label(figure, details, align="right", xref="paper", x=1, xanchor="right", yref="paper", y=1, yanchor="bottom", yshift=4)
    figure.update_layout(margin_t=44)
    figure.update_xaxes(title="largest tensor norm", **log_axis(low_x, high_x))
    figure.update_yaxes(title="largest magnitude", **log_axis(low_y, high_y))
    legend(figure, toggle=True)
    figure.update_layout(legend_itemsizing="constant")
    return figure


def _has_a_place(report: DtypeReport) -> bool:
    return bool(report.extremes.abs_max and report.extremes.norm_max)


def _distance(report: DtypeReport, abs_max: float, norm_max: float) -> float:
    """Return the distance between two points of the figure, in decades."""
    return math.hypot(math.log10((report.extremes.abs_max or 1) / abs_max), math.log10((report.extremes.norm_max or 1) / norm_max))


def _labelled(precision: str, style: int) -> go.Scatter:
    models = [model for model in labelled_extremes() if model.precision == precision]
    marker = {"symbol": MARKERS[style], "size": 9, "color": COLOURS[style], "opacity": 0.85}
    details = [[text(model.model), repr(model.abs_max), repr(model.norm_max), f"trained in {precision}"] for model in models]
    x, y = [model.norm_max for model in models], [model.abs_max for model in models]
    return line(f"trained in {precision}", x, y, style, "", details, mode="markers", marker=marker, hovertemplate=_HOVER, cliponaxis=True)


def _here(placed: Sequence[tuple[int, DtypeReport]], several: bool, span: tuple[float, float], top: float) -> go.Scatter:
    """Draw the highlighted models. span: ends of the horizontal axis, in decades; top: end of the vertical one."""
    extremes = [report.extremes for _, report in placed]
    names = [text(report.checkpoint.ref) for _, report in placed]
    details = [
        [name, _exactly(each.abs_max), _exactly(each.norm_max), f"trained in: {text(report.training.verdict)}"]
        for name, each, (_, report) in zip(names, extremes, placed, strict=True)
    ]
    return line(
        "these models",
        [each.norm_max for each in extremes],
        [each.abs_max for each in extremes],
        3,
        "",
        details,
        name="these models" if several else plain_text.shown(names[0], 34),  # already escaped
        mode="markers+text",
        text=_marks(placed) if several else ["this model"],
        textposition=[f"{_height(report, top)} {_side(report, span)}" for _, report in placed],
        textfont={"size": 13, "weight": 600},
        marker={"symbol": "star", "size": 17, "color": COLOURS[3], "line": {"width": 1.5, "color": GREY}},
        hovertemplate=_HOVER,
    )


def _height(report: DtypeReport, top: float) -> str:
    """Return where the text is at a report's mark: above it, or below one near the top."""
    return "bottom" if top - math.log10(report.extremes.abs_max or 1) < 1 else "top"


def _side(report: DtypeReport, span: tuple[float, float]) -> str:
    """Return the alignment with which the text at a report's mark stays within the figure."""
    share = (math.log10(report.extremes.norm_max or 1) - span[0]) / (span[1] - span[0])
    return "right" if share < _EDGE else "left" if share > 1 - _EDGE else "center"


def _marks(placed: Sequence[tuple[int, DtypeReport]]) -> list[str]:
    """Return the number at each point; overlapping points are labelled once, at the first of them."""
    together: list[list[int]] = []
    for index, (_, report) in enumerate(placed):
        for group in together:
            first = placed[group[0]][1].extremes
            if _distance(report, first.abs_max or 1, first.norm_max or 1) < _NEAR:
                group.append(index)
                break
        else:
            together.append([index])
    marks = [""] * len(placed)
    for group in together:
        marks[group[0]] = ", ".join(str(placed[index][0]) for index in group)
    return marks


def _exactly(value: float | None) -> str:
    return numbers.NOTHING if value is None else f"{value:.6g}"


def _decades(values: Sequence[float]) -> tuple[float, float]:
    return math.floor(math.log10(min(values)) - 0.3), math.ceil(math.log10(max(values)) + 0.3)
