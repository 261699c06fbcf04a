"""The figures of precision variants: what they draw, where they put what has no place on their axes, and that names in them are text."""

import json
import math
from typing import Any

import pytest

from analyzers.precision_variants import PrecisionReport
from components.plots import precision_variants as plots
from components.plots.marks import LogAxis, marked
from components.plots.precision_variants.headroom import BF16, FP16
from tests.components.precision_reports import hostile_precision_report, overflowing, precision_report

ALL = (plots.forward, plots.backward, plots.headroom, plots.parameters, plots.logprobs, plots.inside, plots.inside_backward)


def _row(report: PrecisionReport, variant: str, kind: str, layer: int | None) -> Any:
    return next(row for row in report.variants[variant].tensors if (row.kind, row.layer) == (kind, layer))


@pytest.mark.parametrize(
    ("draw", "kind", "ends"), [(plots.forward, "hidden", ("logits", "loss")), (plots.backward, "hidden_grad", ("logits_grad",))]
)
def test_errors_are_drawn_by_depth_for_every_variant(draw: Any, kind: str, ends: tuple[str, ...]) -> None:
    found = precision_report()
    figure = draw(found)
    assert [trace.name for trace in figure.data] == ["fp32", "bf16", "bf16_fp32_residual", "fp16", "mine"]
    assert figure.layout.yaxis.type == "log"
    for trace in figure.data[1:]:
        assert list(trace.x) == list(range(-1, 4 + len(ends)))
        rows = [_row(found, trace.name, kind, layer) for layer in range(-1, 4)] + [_row(found, trace.name, end, None) for end in ends]
        for value, row in zip(trace.y, rows, strict=True):
            assert value == pytest.approx(100 * row.rms_rel) if row.rms_rel else 0 < value < figure.data[-1].y[1]
    assert list(figure.layout.xaxis.ticktext)[:2] == ["emb.", "0"]
    assert list(figure.layout.xaxis.ticktext)[-len(ends) :] == ["logits", "loss"][: len(ends)]


def test_what_equals_the_reference_stands_at_the_lower_edge_and_what_is_not_finite_at_the_upper() -> None:
    figure: Any = plots.forward(precision_report())
    low, high = (10**edge for edge in figure.layout.yaxis.range)
    same = figure.data[0]
    assert {*same.marker.symbol} == {"triangle-down-open"} and list(same.y) == pytest.approx([low] * len(same.y), rel=0.2)
    over = overflowing()
    assert over.reference.fp16_overflow is not None
    figure = plots.forward(over)
    low, high = (10**edge for edge in figure.layout.yaxis.range)
    fp16 = figure.data[1]
    first = over.reference.fp16_overflow.layer
    for layer, value, symbol in zip(fp16.x, fp16.y, fp16.marker.symbol, strict=True):
        assert (symbol == "x") == (layer >= first)
        assert low <= value <= high
        assert (value == pytest.approx(high, rel=0.2)) == (layer >= first)
    assert "not finite" in fp16.customdata[-1][1]
    assert "sequences:" in figure.data[0].customdata[2][2]


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
    kinds = [row.kind for row in found.variants["bf16"].parameter_kinds]
    assert len(figure.layout.yaxis.ticktext) == len(kinds)
    bf16 = figure.data[1]
    assert list(bf16.x) == pytest.approx([100 * (row.rms_rel or 0) for row in found.variants["bf16"].parameter_kinds])
    assert [said[0] for said in bf16.customdata] == kinds
    assert {*figure.data[0].marker.symbol} == {"triangle-left-open"}
    assert len(plots.parameters(overflowing()).data[1].x) == 0


def test_log_probabilities_are_told_in_nats() -> None:
    found = precision_report()
    figure: Any = plots.logprobs(found)
    assert [trace.name for trace in figure.data] == list(plots.DIFFERENCES)
    of = found.variants["bf16"].logprobs
    assert [trace.x[1] for trace in figure.data] == pytest.approx([of.mean, of.max, abs(of.bias or 0)])
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
        settings = LogAxis.of([*values, None, 0.0]).settings()
        low, high = (10**edge for edge in settings["range"])
        assert settings["type"] == "log" and low < min(values) <= max(values) < high
    assert LogAxis.of([None]).settings()["type"] == "log"


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
