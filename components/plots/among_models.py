"""Models among those with known training precision: largest magnitude against largest tensor norm."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from analyzers.dtype_detection import DtypeReport
from analyzers.dtype_detection.labels import labelled_extremes
from analyzers.dtype_detection.rule import PUBLISHED, rule
from components.plots.marks import line
from components.plots.style import COLOURS, GREY, LIMIT, MARKERS, label, layout, legend, log_axis, text
from components.text import numbers, plain_text

if TYPE_CHECKING:
    from plotly.graph_objects import Figure, Scatter

_PRECISIONS = ("fp16", "bf16", "fp32")
# Points closer than this, in decades, share one label.
_NEAR = 0.25
# Size of a threshold's label on a narrow screen, as shares of the figure's width (left label, bottom label) and height.
_LABEL_WIDTHS, _LABEL_HEIGHT = {"y": 0.38, "x": 0.64}, 0.07
# Within this share of the width from an edge, labels are left- or right-aligned, since a centred one would overlap the axis.
_EDGE = 0.2
_HOVER = "%{customdata[0]}<br>%{customdata[3]}<br>largest %{customdata[1]}<br>norm %{customdata[2]}<extra></extra>"


def among_models(reports: Sequence[DtypeReport], rows: Sequence[int] = ()) -> "Figure":
    """The labelled models as points, coloured and shaped by precision, with ``reports`` highlighted and the rule's thresholds drawn.

    A single report is named; several are numbered by their ``rows`` in the comparison table, by default 1, 2, ... Reports without a finite
    nonzero weight are not drawn.
    """
    from plotly.graph_objects import Figure

    figure = Figure(layout=layout(380))
    for style, precision in enumerate(_PRECISIONS):
        figure.add_trace(_labelled(precision, style))
    placed = [(row, report) for row, report in zip(rows or range(1, len(reports) + 1), reports, strict=True) if _has_a_place(report)]
    norms = [model.norm_max for model in labelled_extremes()] + [report.extremes.norm_max or 1.0 for _, report in placed]
    sizes = [model.abs_max for model in labelled_extremes()] + [report.extremes.abs_max or 1.0 for _, report in placed]
    low_x, high_x = _decades(norms)
    low_y, high_y = _decades(sizes)
    size, norm = (numbers.power(round(math.log10(limit)), 10) for limit in PUBLISHED)
    if placed:
        figure.add_trace(_here(placed, bool(rows) or len(reports) > 1, (low_x, high_x)))
    points = [(math.log10(x), math.log10(y)) for x, y in zip(norms, sizes, strict=True)]
    spans = {"x": (low_x, high_x), "y": (low_y, high_y)}
    _limit(figure, "y", PUBLISHED.abs_max, f"above {size}: bf16", points, spans)
    _limit(figure, "x", PUBLISHED.norm_max, f"left of {norm}: fp16, right: fp32", points, spans)
    figure.update_xaxes(title="largest tensor norm", **log_axis(low_x, high_x))
    figure.update_yaxes(title="largest magnitude", **log_axis(low_y, high_y))
    legend(figure, toggle=True)
    figure.update_layout(legend_itemsizing="constant")
    return figure


def place(report: DtypeReport) -> str:
    """The position of ``report`` among the labelled models, in plain sentences."""
    extremes = report.extremes
    if extremes.abs_max is None or extremes.norm_max is None or not _has_a_place(report):
        return "No finite nonzero weight was read, so this model has no place among the labelled ones."
    at_least, about = ("", "") if extremes.exact else ("at least ", "about ")
    said = rule(extremes.abs_max, extremes.norm_max)
    alike = Counter(model.precision for model in labelled_extremes() if rule(model.abs_max, model.norm_max) == said)
    known = " and ".join(f"{name} ({alike[name]})" for name in _PRECISIONS if alike[name])
    nearest = min(labelled_extremes(), key=lambda model: _distance(report, model.abs_max, model.norm_max))
    sentences = [
        f"Largest weight {at_least}{numbers.magnitude(extremes.abs_max)}, largest norm {about}{numbers.magnitude(extremes.norm_max)}: "
        f"where the rule of thumb says {said}. The {sum(alike.values())} labelled models there were trained in {known}.",
        f"The nearest is {nearest.model} ({nearest.precision}).",
    ]
    if not extremes.exact:
        sentences.append("Quick mode sees a sample: the true largest weight can be larger, never smaller.")
    if any(row.role == "head" for row in report.layers):
        sentences.append("Its LM head is counted here; the labelled models are shown without theirs.")
    return " ".join(sentences)


def _has_a_place(report: DtypeReport) -> bool:
    return bool(report.extremes.abs_max and report.extremes.norm_max)


def _distance(report: DtypeReport, abs_max: float, norm_max: float) -> float:
    """Distance between two points of the figure, in decades."""
    return math.hypot(math.log10((report.extremes.abs_max or 1) / abs_max), math.log10((report.extremes.norm_max or 1) / norm_max))


def _labelled(precision: str, style: int) -> "Scatter":
    models = [model for model in labelled_extremes() if model.precision == precision]
    marker = {"symbol": MARKERS[style], "size": 9, "color": COLOURS[style], "opacity": 0.85}
    said = [[text(model.model), repr(model.abs_max), repr(model.norm_max), f"trained in {precision}"] for model in models]
    x, y = [model.norm_max for model in models], [model.abs_max for model in models]
    return line(f"trained in {precision}", x, y, style, "", said, mode="markers", marker=marker, hovertemplate=_HOVER, cliponaxis=True)


def _here(placed: Sequence[tuple[int, DtypeReport]], several: bool, span: tuple[float, float]) -> "Scatter":
    """The highlighted models. span: of the horizontal axis, in decades."""
    found = [report.extremes for _, report in placed]
    names = [text(report.checkpoint.ref) for _, report in placed]
    said = [
        [name, _exactly(each.abs_max), _exactly(each.norm_max), f"trained in: {text(report.training.verdict)}"]
        for name, each, (_, report) in zip(names, found, placed, strict=True)
    ]
    return line(
        "these models",
        [each.norm_max for each in found],
        [each.abs_max for each in found],
        3,
        "",
        said,
        name="these models" if several else plain_text.shown(names[0], 34),  # escaped already
        mode="markers+text",
        text=_marks(placed) if several else ["this model"],
        textposition=[f"top {_side(report, span)}" for _, report in placed],
        textfont={"size": 13, "weight": 600},
        marker={"symbol": "star", "size": 17, "color": COLOURS[3], "line": {"width": 1.5, "color": GREY}},
        hovertemplate=_HOVER,
    )


def _side(report: DtypeReport, span: tuple[float, float]) -> str:
    """The side of its mark on which a text stays within the figure."""
    share = (math.log10(report.extremes.norm_max or 1) - span[0]) / (span[1] - span[0])
    return "right" if share < _EDGE else "left" if share > 1 - _EDGE else "center"


def _marks(placed: Sequence[tuple[int, DtypeReport]]) -> list[str]:
    """The number at each point; overlapping points are labelled once, at the first of them."""
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


def _limit(
    figure: "Figure",
    axis: str,
    value: float,
    name: str,
    points: Sequence[tuple[float, float]],
    spans: Mapping[str, tuple[float, float]],
) -> None:
    """Draw a threshold across the figure, labelled at the end where the label covers the fewest points, also on a narrow screen.

    points: all points drawn; spans: of the axes; both in decades.
    """
    across = {"xref": "paper", "x0": 0, "x1": 1, "y0": value, "y1": value}
    up = {"yref": "paper", "y0": 0, "y1": 1, "x0": value, "x1": value}
    figure.add_shape(type="line", line=LIMIT, **(across if axis == "y" else up))
    (left, right), (bottom, top) = spans["x"], spans["y"]
    wide, high = _LABEL_WIDTHS[axis] * (right - left), _LABEL_HEIGHT * (top - bottom)
    at = math.log10(value)
    # candidate positions: a corner or the middle of an edge, with the label's anchors
    if axis == "y":
        places = [(x, at, side, edge) for x, side in ((left, "left"), (right, "right")) for edge in ("bottom", "top")]
    else:
        places = [(at, bottom, "center", "bottom"), (at, top, "center", "top")]

    def covered(place: tuple[float, float, str, str]) -> int:
        x, y, side, edge = place
        west = x - {"left": 0.0, "center": wide / 2, "right": wide}[side]
        south = y - {"bottom": 0.0, "top": high}[edge]
        return sum(west <= norm <= west + wide and south <= size <= south + high for norm, size in points)

    x, y, side, edge = min(places, key=covered)
    label(figure, name, x=x, y=y, xanchor=side, yanchor=edge)


def _decades(values: Sequence[float]) -> tuple[float, float]:
    return math.floor(math.log10(min(values)) - 0.3), math.ceil(math.log10(max(values)) + 0.3)
