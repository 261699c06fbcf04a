"""The figures of update sparsity: what they draw, the thresholds they mark, and that names in them are text."""

import json
import math

import plotly.graph_objects as go
import pytest
from PIL import Image, ImageDraw, ImageFont

from analyzers.update_sparsity.published import published
from components.plots import raster
from components.plots.marks import SHARES
from components.sparsity import plots, trajectory_plots
from tests.components.sparsity_reports import hostile_sparsity_report, sampled_report, sparsity_report, trajectory


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


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_one_share_everywhere_is_said_and_has_no_scale(share: float) -> None:
    rows = [row.model_dump() | {"roles": dict.fromkeys(row.roles, share)} for row in sparsity_report().layers]
    figure = plots.heat_map(sparsity_report(layers=rows))
    assert not figure.data[0].showscale and (figure.data[0].zmin, figure.data[0].zmax) == (0, 100)
    assert [note.text for note in figure.layout.annotations] == [f"Every cell: {100 * share:.6g}%"]
    several = plots.heat_map(sparsity_report())
    assert several.data[0].showscale is not False and not several.layout.annotations


def test_roles_are_points_with_the_range_of_their_tensors_which_fills_the_axis() -> None:
    figure = plots.roles(sparsity_report())
    (bars,) = figure.data
    low, high = figure.layout.xaxis.range
    ends = [end for row in sparsity_report().roles.values() for end in (row.min, row.max) if end is not None]
    assert 100 * min(ends) - 10 < low < 100 * min(ends) and 100 * max(ends) == high == 100
    assert list(bars.y) == ["norm", "mlp", "attention", "embedding"]
    attention = list(bars.y).index("attention")
    assert bars.x[attention] == pytest.approx(70)
    assert bars.error_x.array[attention] == pytest.approx(10) and bars.error_x.arrayminus[attention] == pytest.approx(20)


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


def test_steps_of_bf16_are_named_and_empty_ones_left_out() -> None:
    figure = plots.ulps(sparsity_report())
    assert list(figure.layout.yaxis.ticktext) == ["0", "1", "2", "4 to 7", "8 to 15"]
    assert [said[0] for said in figure.data[0].customdata] == ["0 ULPs", "1 ULP", "2 ULPs", "4 to 7 ULPs", "8 to 15 ULPs"]
    assert sum(figure.data[0].x) == pytest.approx(100)
    assert figure.layout.xaxis.type == "log"


def test_sign_flips_are_named_and_every_bar_has_a_name() -> None:
    ends = [(0, 0), (1, 1), (2, 3), (4, 7), (8, 15), (16, 31), (32, 63), (64, 127), (128, 255), (16_384, 32_767)]
    bins = [{"low": low, "high": high, "count": 5, "share": 0.1} for low, high in ends]
    for count in range(1, len(bins) + 1):
        figure = plots.ulps(sparsity_report(ulp_histogram=bins[-count:]))
        assert figure.layout.yaxis.tickvals == figure.data[0].y == tuple(range(count))
        assert figure.layout.yaxis.ticktext[-1] == "sign flips"
        assert figure.data[0].customdata[-1][0] == "16,384 to 32,767 ULPs (the sign flipped)"
    assert "sign" not in "".join(plots.ulps(sparsity_report()).layout.yaxis.ticktext)


def test_what_changed_is_strong_and_what_did_not_is_grey_on_the_page_and_in_previews() -> None:
    (cells,) = plots.heat_map(sparsity_report()).data
    assert [colour for _, colour in cells.colorscale] == [colour for _, colour in reversed(SHARES)]
    figure = go.Figure(go.Heatmap(x=[0, 1], y=[0, 1], z=[[0, 100], [0, 100]], zmin=0, zmax=100, colorscale=cells.colorscale))
    image = Image.new("RGB", (600, 400), "white")
    raster.draw(ImageDraw.Draw(image, "RGBA"), figure, raster.Box(0, 0, 600, 400), ImageFont.load_default(12))
    colours = {colour for _, colour in image.getcolors(10_000) or ()}
    assert {(108, 147, 232), (222, 224, 226)} <= colours


def test_a_trajectory_is_drawn_against_the_base_and_step_by_step_with_roles_on_request() -> None:
    figure = trajectory_plots.steps(sparsity_report(**trajectory(3)))
    assert [(trace.name, trace.visible) for trace in figure.data] == [
        ("from the base", None),
        ("from the one before", None),
        ("attention", "legendonly"),
        ("norm", "legendonly"),
    ]
    assert list(figure.data[0].y) == pytest.approx([100 - 5 * math.sqrt(i) for i in (1, 2, 3)])
    assert figure.data[3].y[0] is None
    assert list(trajectory_plots.steps(sparsity_report(**trajectory(50))).layout.xaxis.tickvals) == list(range(1, 51, 5))


def test_overlap_has_a_panel_for_what_was_measured_and_one_for_independence() -> None:
    figure = trajectory_plots.overlap(sparsity_report(**trajectory(3)))
    measured, independent = figure.data
    assert [list(row) for row in measured.z] == [[None, None, None], [25.0, None, None], [12.5, 25.0, None]]
    assert [list(row) for row in independent.z] == [[None, None, None], [5.0, None, None], [5.0, 5.0, None]]
    assert [note.text for note in figure.layout.annotations] == ["measured", "if independent"]
    assert measured.customdata[2][0] == "12.5%" and independent.customdata[2][0] == "5%"
    assert measured.coloraxis == independent.coloraxis == "coloraxis"
    assert (figure.layout.coloraxis.cmin, figure.layout.coloraxis.cmax) == (0, 100)


def test_published_points_and_this_pair() -> None:
    figure = plots.among_published(sampled_report())
    *others, here = figure.data
    assert sum(len(trace.x) for trace in others) == len(published())
    assert {trace.name for trace in others} == {row.algorithm for row in published()}
    assert (here.x[0], here.y[0]) == (75, "this pair")
    assert here.error_x.array[0] == pytest.approx(4) and here.error_x.arrayminus[0] == pytest.approx(5)
    assert len(plots.among_published(sparsity_report(sparsity=None)).data) == len(others)


def test_nothing_to_draw_draws_nothing_and_does_not_fail() -> None:
    report = sparsity_report(layers=[], roles={}, ulp_histogram=[], sparsity=None)
    none = report.magnitudes.relative.model_copy(update={"histogram": (), "count": 0})
    report = report.model_copy(update={"magnitudes": report.magnitudes.model_copy(update={"relative": none})})
    for draw in (plots.heat_map, plots.roles, plots.relative, plots.ulps):
        json.dumps(draw(report).to_plotly_json(), default=str)


def test_names_in_figures_are_text() -> None:
    hostile = hostile_sparsity_report()
    for draw in (
        plots.heat_map,
        plots.roles,
        plots.relative,
        plots.ulps,
        trajectory_plots.steps,
        trajectory_plots.overlap,
        plots.among_published,
    ):
        assert "<img" not in json.dumps(draw(hostile).to_plotly_json(), default=str)
