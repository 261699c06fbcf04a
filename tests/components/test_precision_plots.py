"""The figures of precision variants: what they draw, where they put what has no place on their axes, and that names in them are text."""

import json
import math
from statistics import median
from typing import Any

import pytest

from analyzers.precision_variants import PrecisionReport
from components.plots.marks import Series, log_figure, marked
from components.precision import plots
from components.precision.plots import BF16, FP16
from tests.components.precision_reports import hostile_precision_report, overflowing, precision_report

ALL = (plots.forward, plots.backward, plots.headroom, plots.parameters, plots.logprobs, plots.inside, plots.inside_backward)


@pytest.mark.parametrize("layers", [2, 12, 32, 126])
@pytest.mark.parametrize("draw", [plots.forward, plots.headroom])
def test_names_before_and_after_the_layers_keep_their_distance(draw: Any, layers: int) -> None:
    found = precision_report()
    head = found.reference.headroom[-1].model_copy(update={"layer": layers})
    axis = draw(
        found.model_copy(update={"reference": found.reference.model_copy(update={"layers": layers, "headroom": (head,)})})
    ).layout.xaxis
    low, high = axis.range
    places = [240 * (tick - low) / (high - low) for tick in axis.tickvals]  # pixels on a narrow screen
    names = zip(axis.ticktext, axis.ticktext[1:], strict=False)
    for (name, after), here, there in zip(names, places, places[1:], strict=False):
        assert there - here > 5.5 * (len(name) + len(after)) / 2, (name, after)


def _row(report: PrecisionReport, variant: str, kind: str, layer: int | None) -> Any:
    return next(row for row in report.variants[variant].tensors if (row.kind, row.layer) == (kind, layer))


@pytest.mark.parametrize(
    ("draw", "kind", "ends"), [(plots.forward, "hidden", ("logits", "loss")), (plots.backward, "hidden_grad", ("logits_grad",))]
)
def test_errors_are_drawn_by_depth_for_every_variant(draw: Any, kind: str, ends: tuple[str, ...]) -> None:
    found = precision_report()
    figure = draw(found)
    lines = [trace for trace in figure.data if trace.yaxis is None]
    assert [trace.name for trace in lines] == ["fp32", "bf16", "bf16_fp32_residual", "fp16", "mine"]
    assert figure.layout.yaxis.type == "log"
    for trace in lines[1:]:
        assert list(trace.x) == list(range(-1, 4 + len(ends)))
        rows = [_row(found, trace.name, kind, layer) for layer in range(-1, 4)] + [_row(found, trace.name, end, None) for end in ends]
        for value, row in zip(trace.y, rows, strict=True):
            assert value == (pytest.approx(100 * row.rms_rel) if row.rms_rel else None)
    assert list(figure.layout.xaxis.ticktext)[:2] == ["emb.", "0"]
    assert list(figure.layout.xaxis.ticktext)[-len(ends) :] == ["logits", "loss"][: len(ends)]


def _strip(figure: Any, name: str, axis: str) -> dict[Any, Any]:
    """The points in the strip ``axis`` ("y2" is exact, "y3" overflow) of a variant, by their place."""
    traces = [trace for trace in figure.data if trace.name == name and trace.yaxis == axis]
    return {x: said for trace in traces for x, y, said in zip(trace.x, trace.y, trace.customdata, strict=True) if y is not None}


def test_what_equals_the_reference_and_what_overflows_is_in_a_strip_of_its_own_and_breaks_the_line() -> None:
    figure: Any = plots.forward(precision_report())
    assert [*figure.data[0].y] == [None] * len(figure.data[0].x) and _strip(figure, "fp32", "y2").keys() == {*figure.data[0].x}
    assert list(figure.layout.yaxis2.ticktext) == ["exact"] and "yaxis3" not in figure.layout
    assert figure.layout.yaxis2.domain[1] < figure.layout.yaxis.domain[0] and figure.layout.xaxis.anchor == "y2"
    over = overflowing()
    assert over.reference.fp16_overflow is not None
    figure = plots.forward(over)
    fp16 = figure.data[1]
    first = over.reference.fp16_overflow.layer
    overflow, exact = _strip(figure, "fp16", "y3"), _strip(figure, "fp16", "y2")
    for layer, value in zip(fp16.x, fp16.y, strict=True):
        assert (value is None) == (layer >= first or layer in exact)
    assert overflow.keys() == {layer for layer in fp16.x if layer >= first}
    assert all("not finite" in said[1] for said in overflow.values())
    assert figure.layout.yaxis.domain[1] < figure.layout.yaxis3.domain[0]


def test_headroom_is_a_distance_to_the_limits_of_fp16_and_bf16() -> None:
    for found in (precision_report(), overflowing()):
        figure: Any = plots.headroom(found)
        assert [trace.name for trace in figure.data[:3]] == list(plots.SIDES)
        for trace, side in zip(figure.data, plots.SIDES.values(), strict=False):
            for height, row in zip(trace.y, found.reference.headroom, strict=True):
                assert height == pytest.approx(math.log2(getattr(row, f"{side}_max")))
                assert pytest.approx(getattr(row, side)) == FP16 - height
        assert figure.layout.shapes[0].y0 == FP16 == pytest.approx(16, abs=1e-3)
        assert list(figure.data[3].y) == [BF16, BF16] and figure.data[3].yaxis == "y2"
        low, high = figure.layout.yaxis.range
        assert low < min(min(trace.y) for trace in figure.data[:3]) and max(FP16, *figure.data[0].y) < high
        assert figure.layout.yaxis2.range[0] < BF16 < figure.layout.yaxis2.range[1]
    assert max(plots.headroom(overflowing()).data[0].y) > FP16


def test_parameters_have_a_row_for_each_kind_and_a_mark_for_each_variant() -> None:
    found = precision_report()
    figure: Any = plots.parameters(found)
    errors: dict[str, list[float]] = {}
    for row in found.variants["bf16"].tensors:
        if row.kind == "parameter_grad":
            errors.setdefault(row.name.split(f"layers.{row.layer}.")[-1], []).append(100 * (row.rms_rel or 0))
    assert len(figure.layout.yaxis.ticktext) == len(errors) == 11
    bf16 = figure.data[1]
    drawn = dict(zip((said[0] for said in bf16.customdata), bf16.x, strict=True))
    assert drawn == pytest.approx({name: median(each) for name, each in errors.items()})
    assert {trace.name for trace in figure.data if trace.xaxis == "x2"} == {"fp32"} and {*figure.data[0].x} == {None}
    over: Any = plots.parameters(overflowing())
    assert {trace.name for trace in over.data if trace.xaxis == "x3"} == {"fp16"}
    assert list(over.layout.xaxis3.ticktext) == ["overflow"]


def test_log_probabilities_are_told_in_nats() -> None:
    found = precision_report()
    figure: Any = plots.logprobs(found)
    assert [trace.name for trace in figure.data[:3]] == list(plots.DIFFERENCES)
    bf16 = found.variants["bf16"]
    exact = [bf16.summary.logprob_mean, bf16.summary.logprob_max, abs(bf16.logprobs.bias or 0)]
    assert [trace.x[1] for trace in figure.data[:3]] == pytest.approx(exact)
    assert list(figure.layout.yaxis.ticktext)[1] == "bf16"


def test_inside_layers_the_median_over_layers_is_drawn() -> None:
    found = overflowing()
    for draw, kind in ((plots.inside, "inside"), (plots.inside_backward, "inside_grad")):
        figure: Any = draw(found)
        rows = [row for row in found.variants["bf16"].tensors if row.kind == kind]
        values = sorted(row.rms_rel or 0 for row in rows if row.name == rows[0].name)
        assert len(values) == 4
        assert figure.data[0].x[0] == pytest.approx(100 * (values[1] + values[2]) / 2)
    assert len(plots.inside(precision_report()).data[0].x) == 0


def test_a_logarithmic_axis_holds_its_values_with_room() -> None:
    for values in ((0.02, 0.6), (1e-9, 1.0), (5.0, 5.0)):
        series = [Series("a", [0, 1, 2, 3, 4], [*values, None, 0.0, math.inf], [["x"]] * 5)]
        figure: Any = log_figure(300, "y", series, "title", "", "lines+markers")
        low, high = (10**edge for edge in figure.layout.yaxis.range)
        assert figure.layout.yaxis.type == "log" and low < min(values) <= max(values) < high
        assert [list(trace.y) for trace in figure.data] == [
            [*values, None, None, None],
            [None, None, None, 0, None],
            [None, None, None, None, 0],
        ]
    empty: Any = log_figure(300, "x", [Series("a", [0], [None], [["x"]])], "title", "", "markers")
    assert empty.layout.xaxis.type == "log" and len(empty.data) == 1


def test_more_variants_than_colours_are_told_apart() -> None:
    drawn = [tuple(marked(index).values()) for index in range(24)]
    assert len({*drawn}) == 24


def test_names_in_figures_are_text_and_short() -> None:
    hostile = hostile_precision_report()
    for draw in ALL:
        drawn = json.dumps(draw(hostile).to_plotly_json(), default=list, allow_nan=False)
        assert "<img" not in drawn and "\\u202e" not in drawn and "\u202e" not in drawn
        assert "x" * 100 not in drawn
    assert "&lt;img" in json.dumps(plots.headroom(hostile).to_plotly_json(), default=list)
