"""The figure of labelled models: every one of them, and this one within it."""

from typing import Any

import pytest

from analyzers.dtype_detection.labelled_models import labelled_extremes
from components.dtype.labelled_models_plot import among_models
from tests.components.dtype_reports import report


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


@pytest.mark.parametrize("abs_max", [1e-30, 1e30])
def test_far_away_is_inside_the_figure_too(abs_max: float) -> None:
    layout = among_models([_at(abs_max, 1e20)]).layout
    low, high = layout.yaxis.range
    assert 10**low < abs_max < 10**high
    assert layout.yaxis.type == layout.xaxis.type == "log" and layout.yaxis.tickvals is None
