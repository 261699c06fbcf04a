"""The figure of labelled models: every one of them, this one highlighted, the rule's thresholds, and what is said about it."""

import json
from typing import Any

import pytest

from analyzers.dtype_detection.labelled_models import labelled_extremes
from components.dtype.comparison_plots import largest, spectra
from components.dtype.labelled_models_plot import among_models
from tests.components.dtype_reports import hostile_report, report


def _at(abs_max: float | None, norm_max: float | None, exact: bool = True, **changes: Any) -> Any:
    extremes = report().extremes.model_dump() | {"abs_max": abs_max, "norm_max": norm_max, "exact": exact}
    return report(extremes=extremes, **changes)


def test_every_labelled_model_is_a_point_of_its_precision() -> None:
    figure = among_models([report()])
    points = {
        (trace.name, name[0], x, y) for trace in figure.data[:-1] for name, x, y in zip(trace.customdata, trace.x, trace.y, strict=True)
    }
    assert points == {(f"trained in {m.precision}", m.model, m.norm_max, m.abs_max) for m in labelled_extremes()}
    assert len({trace.marker.symbol for trace in figure.data}) == len({trace.marker.color for trace in figure.data}) == 4


def test_this_model_is_named_and_stands_where_its_extremes_are() -> None:
    here = among_models([_at(2.4, 37.5)]).data[-1]
    assert (here.x, here.y) == ((37.5,), (2.4,))
    assert here.customdata[0][0] == "sample:tiny-bf16-as-fp32"
    assert here.name == "sample:tiny-bf16-as-fp32"


def test_the_thresholds_of_the_rule_are_drawn_and_labelled() -> None:
    layout = among_models([report()]).layout
    assert [(shape.x0, shape.y0) for shape in layout.shapes] == [(0, 1e2), (1e3, 0)]
    assert [note.text for note in layout.annotations] == ["dashed: above 10²: bf16;<br>below: fp16 left of 10³, fp32 right"]
    assert layout.xaxis.type == layout.yaxis.type == "log"


def test_the_names_of_the_thresholds_are_above_the_figure_and_fit_on_a_narrow_screen() -> None:
    layout = among_models([report()]).layout
    (note,) = layout.annotations
    assert (note.yref, note.y, note.yanchor) == ("paper", 1, "bottom") and note.yshift + 32 < layout.margin.t
    assert 5.4 * max(map(len, note.text.split("<br>"))) < 250  # pixels of a character, and of the figure


@pytest.mark.parametrize(("norm_max", "side"), [(20.0, "right"), (1e4, "center"), (5e6, "left")])
def test_the_name_of_a_model_beside_an_edge_stays_within_the_figure(norm_max: float, side: str) -> None:
    assert among_models([_at(2.4, norm_max)]).data[-1].textposition == (f"top {side}",)


@pytest.mark.parametrize(("abs_max", "side"), [(2.4, "top"), (3.7e5, "bottom")])
def test_the_name_of_a_model_near_the_top_is_below_it(abs_max: float, side: str) -> None:
    assert among_models([_at(abs_max, 1e4)]).data[-1].textposition == (f"{side} center",)


def test_several_models_have_the_numbers_of_their_rows_and_points_together_share_a_mark() -> None:
    here = among_models([_at(2.4, 37.5), _at(500.0, 1e5), _at(2.41, 37.6)], [1, 2, 4]).data[-1]
    assert list(here.text) == ["1, 4", "2", ""]


@pytest.mark.parametrize(("abs_max", "norm_max"), [(None, None), (0.0, None)])
def test_a_model_without_a_finite_nonzero_weight_has_no_place(abs_max: float | None, norm_max: float | None) -> None:
    nowhere = _at(abs_max, norm_max)
    assert len(among_models([nowhere]).data) == 3


@pytest.mark.parametrize("abs_max", [1e-30, 1e30])
def test_far_away_is_inside_the_figure_too(abs_max: float) -> None:
    layout = among_models([_at(abs_max, 1e20)]).layout
    low, high = layout.yaxis.range
    assert 10**low < abs_max < 10**high
    assert layout.yaxis.type == layout.xaxis.type == "log" and layout.yaxis.tickvals is None


def test_names_are_text() -> None:
    assert "<img" not in json.dumps(among_models([hostile_report()]).to_plotly_json(), default=str)


def test_the_spectra_and_layers_of_several_models_are_lines_in_one_figure_each() -> None:
    reports = [report(), _at(2.4, 37.5), hostile_report()]
    overlaid, layers = spectra(reports, [1, 3, 4]), largest(reports, [1, 3, 4])
    assert [trace.name[0] for trace in overlaid.data] == ["1", "3", "4"] == [trace.name[0] for trace in layers.data]
    assert all(sum(trace.y) == pytest.approx(100) for trace in overlaid.data)
    assert max(layers.data[0].y) == max(row.abs_max or 0 for row in report().layers if row.layer is not None)
    assert "<" not in "".join(trace.name for trace in overlaid.data)
    assert len(spectra([report()] * 12, range(1, 13)).data) == 9
