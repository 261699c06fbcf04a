"""The figures of update sparsity: what they draw, and the thresholds they mark."""

import json
import math

import pytest

from components.sparsity import plots
from tests.components.sparsity_reports import sampled_report, sparsity_report


@pytest.mark.parametrize("depth", [1, 4, 48, 126])
def test_the_heat_map_has_a_cell_for_each_layer_and_role_and_one_place_for_the_rest(depth: int) -> None:
    report = sparsity_report(depth=depth)
    (cells,) = plots.heat_map(report).data
    assert list(cells.y) == [*report.roles][::-1]
    assert len(cells.x) == len(cells.z[0]) + 1 == depth + 3
    drawn = {
        (role, place): share
        for role, line, said in zip(cells.y, cells.z, cells.customdata, strict=True)
        for share, (place, _) in zip(line, said, strict=True)
        if share is not None
    }
    expected = {
        (role, "not in a layer" if row.layer is None else f"layer {row.layer}"): 100 * share
        for row in report.layers
        for role, share in row.roles.items()
        if share is not None
    }
    assert drawn == pytest.approx(expected)
    assert (cells.texttemplate is not None) == (depth < 15)
    axis = plots.heat_map(report).layout.xaxis
    assert axis.ticktext[0] == "no layer" and len(axis.ticktext) <= 8


def test_relative_updates_mark_both_steps_of_bf16_and_stack_what_bf16_does_not_see() -> None:
    plain, swallowed = plots.relative(sparsity_report()), plots.relative(sampled_report())
    for figure in (plain, swallowed):
        assert {shape.x0 for shape in figure.layout.shapes} == {-8, -7}
        assert {note.text for note in figure.layout.annotations} == {"smallest relative bf16 ULP, 2⁻⁸", "largest relative bf16 ULP, 2⁻⁷"}
    assert [trace.name for trace in plain.data] == ["changed in bf16"]
    assert [trace.name for trace in swallowed.data] == ["changed in bf16", "the same in bf16"]
    assert swallowed.layout.barmode == "stack"
    report = sampled_report()
    bins = [each for each in report.magnitudes.relative.histogram if each.count]
    area = [sum(y * math.log2(each.high / each.low) for y, each in zip(trace.y, bins, strict=True)) for trace in swallowed.data]
    total = report.magnitudes.relative.count
    changed = sum(each.changed for each in bins)
    assert area == pytest.approx([100 * changed / total, 100 * (sum(each.count for each in bins) - changed) / total])


def test_nothing_to_draw_draws_nothing_and_does_not_fail() -> None:
    report = sparsity_report(layers=[], roles={}, ulp_histogram=[], sparsity=None)
    none = report.magnitudes.relative.model_copy(update={"histogram": (), "count": 0})
    report = report.model_copy(update={"magnitudes": report.magnitudes.model_copy(update={"relative": none})})
    for draw in (plots.heat_map, plots.roles, plots.relative, plots.ulps):
        json.dumps(draw(report).to_plotly_json(), default=str)
