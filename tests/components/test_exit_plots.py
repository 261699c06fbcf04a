"""The figures of exit feedback: what they draw of a report."""

from itertools import pairwise
from statistics import fmean
from typing import Any

import pytest

from analyzers.exit_feedback.signals import NULL
from components.exit import plots, sweep_plot
from tests.components.exit_reports import exit_report


def test_a_sweep_has_a_panel_for_each_setting_with_means_ceilings_and_the_null() -> None:
    found = exit_report()
    figure: Any = sweep_plot.sweep(found)
    axes = [figure.layout.xaxis, figure.layout.xaxis2, figure.layout.xaxis3]
    assert [axis.title.text for axis in axes] == list(sweep_plot.PARAMETERS.values())
    for number, parameter in enumerate(sweep_plot.PARAMETERS, 1):
        drawn = {trace.name: trace for trace in figure.data if trace.xaxis == ("x" if number == 1 else f"x{number}")}
        rows = [row for row in found.sweep if row.parameter == parameter and row.cosine is not None]
        for name in {row.method for row in rows} - {NULL}:
            of = {value: [row.cosine.mean for row in rows if (row.method, row.value) == (name, value)] for value in drawn[name].x}  # type: ignore[union-attr]
            assert list(drawn[name].y) == pytest.approx([fmean(each) for each in of.values()])
            if len(of[drawn[name].x[0]]) > 1:
                tops = [y + above for y, above in zip(drawn[name].y, drawn[name].error_y.array, strict=True)]
                assert tops == pytest.approx([max(each) for each in of.values()])
        assert {"svd", "true_rows", "span", "parallel", NULL} <= set(drawn)
        level = {"rank": "span", "k": "svd", "anchors": "true_rows"}[parameter]
        cosine = found.methods[level].cosine
        assert cosine is not None and {*drawn[level].y} == {cosine.mean} and drawn[level].mode == "lines"
    assert found.null is not None
    band = next(trace for trace in figure.data if trace.fill == "toself" and trace.xaxis == "x3")
    assert (min(band.y), max(band.y)) == (min(found.null.values), max(found.null.values))
    for axis in axes:
        ticks = list(axis.tickvals)
        assert all(after / before >= 1.6 for before, after in pairwise(ticks))


def test_curves_have_a_line_for_each_signal() -> None:
    found = exit_report()
    for trace in plots.loss_bins(found).data:
        bins = found.methods[trace.name].loss_bins
        assert list(trace.y) == [row.cosine.mean if row.cosine else None for row in bins]
    for trace in plots.layers(found).data:
        rows = {row.layer: row for row in found.layers if row.method == trace.name}
        assert list(trace.x) == [0, 3] and [trace.y[0], trace.y[1]] == [row.cosine.mean for row in (rows[0], rows[3]) if row.cosine]
