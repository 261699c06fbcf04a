"""The figures: the limits they mark, and the values they hover."""

import json

import pytest

from components.dtype import plots
from tests.components.dtype_reports import hostile_report, report


def test_spectrum_marks_and_names_the_limits() -> None:
    figure = plots.spectrum(report())
    named = {annotation.text: annotation.x for annotation in figure.layout.annotations}
    assert named["fp16 smallest subnormal 2⁻²⁴"] == -24
    assert named["fp16 smallest normal 2⁻¹⁴"] == -14
    assert named["fp16 largest 65504"] == pytest.approx(16, abs=1e-3)
    assert named["fp8 e4m3 largest 448"] == pytest.approx(8.8074, abs=1e-3)
    assert len(figure.layout.shapes) == len(named)
    assert sum(figure.data[0].y) == pytest.approx(100)


def test_small_bars_show_on_a_logarithmic_scale() -> None:
    figure = plots.spectrum(report())
    linear, log = (button.args[0] for button in figure.layout.updatemenus[0].buttons)
    assert (linear["yaxis.type"], log["yaxis.type"]) == ("linear", "log")
    low, high = (10**end for end in log["yaxis.range"])
    assert low < min(figure.data[0].y) and high > 2 * max(figure.data[0].y)
    assert 2 <= len(log["yaxis.tickvals"]) <= 8 and max(log["yaxis.tickvals"]) <= 100


def test_bf16_is_marked_where_values_come_near_it() -> None:
    far = report(exponents=[{"exponent": -127, "count": 3}, {"exponent": 127, "count": 1}])
    assert {mark.name.split()[0] for mark in plots.marks(far)} == {"bf16", "fp16", "fp8"}
    assert {mark.name.split()[0] for mark in plots.marks(report())} == {"fp16", "fp8"}
    low, high = plots.spectrum(far).layout.xaxis.range
    assert low < -127
    assert high > 128


def test_nothing_read_draws_nothing() -> None:
    empty = report(exponents=[], layers=[])
    assert list(plots.spectrum(empty).data[0].y) == []
    assert list(plots.layers(empty).data) == []


def test_layers_have_one_trace_per_role_and_the_limit_of_fp16() -> None:
    figure = plots.layers(report())
    assert [trace.name for trace in figure.data] == ["attention", "mlp", "norm", "embedding", "head"]
    assert figure.layout.yaxis.type == "log"
    assert figure.layout.shapes[0].y0 == 65504
    assert figure.layout.annotations[0].text == "fp16 largest 65504"
    attention = figure.data[0]
    assert attention.x == (None, 0, 1, 2, 3, 4, 5)
    assert attention.customdata[1][1] == repr(attention.y[1])
    assert figure.data[3].x[0] == -1


def test_names_in_figures_are_text() -> None:
    figures = plots.layers(hostile_report()), plots.spectrum(hostile_report())
    for figure in figures:
        assert "<img" not in json.dumps(figure.to_plotly_json(), default=str)


@pytest.mark.parametrize("count", [1, 2, 7, 48, 200, 5000])
def test_names_of_layers_keep_their_distance(count: int) -> None:
    row = report().layers[0].model_dump()
    layers = [row | {"layer": None, "role": "head"}, *(row | {"layer": layer} for layer in range(count))]
    axis = plots.layers(report(layers=layers)).layout.xaxis
    assert axis.ticktext[:2] == ("no layer", "0")
    gaps = [b - a for a, b in zip(axis.tickvals, axis.tickvals[1:], strict=False)]
    assert min(gaps) >= (axis.tickvals[-1] - axis.tickvals[0]) / 8
