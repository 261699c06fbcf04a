"""The figures of exit feedback: what they draw of a report, and that names in them are text."""

import json
from itertools import pairwise
from statistics import fmean
from typing import Any

import pytest

from analyzers.exit_feedback.signals import EXACT, NULL
from analyzers.exit_feedback.words import signal_name
from components.exit import plots, sweep_plot
from components.exit.text import style
from components.plots.marks import marked
from tests.components.exit_reports import at_a_glance, exit_report, hostile_exit_report

ALL = (
    plots.at_head, plots.before_norm, sweep_plot.sweep, plots.loss_bins, plots.layers, plots.seconds, plots.memory,
)  # fmt: skip


def _named(figure: Any, name: str) -> list[Any]:
    return [trace for trace in figure.data if trace.name == name]


@pytest.mark.parametrize("before", [False, True])
def test_cosines_are_ridges_as_high_as_their_bins_with_percentiles_below(before: bool) -> None:
    found = exit_report()
    figure: Any = plots.before_norm(found) if before else plots.at_head(found)
    assert list(figure.layout.yaxis.ticktext) == list(map(signal_name, found.methods))
    for place, (name, method) in enumerate(found.methods.items()):
        side = method.before_norm if before else method
        ridge, percentiles = _named(figure, name)
        assert side.cosine is not None
        assert list(percentiles.x) == [side.cosine.p10, side.cosine.p50, side.cosine.mean, side.cosine.p90]
        assert {*percentiles.y} == {percentiles.y[0]} and place < percentiles.y[0] < place + 0.3
        heights = [place - height for height in ridge.y[1:-1:2]]
        highest = max(side.histogram)
        assert heights == pytest.approx([max(heights) * count / highest for count in side.histogram])
        assert (ridge.opacity < 0.5) == (name in ("svd", "true_rows"))
        assert (ridge.x[0], ridge.x[-1]) == (-1, 1) and 0 < max(heights) < 1
        # the tallest bin holds the cosines that are most frequent
        middle = ridge.x[1 + 2 * side.histogram.index(highest)]
        assert -1 <= middle <= 1 and ridge.line.color == marked(style(name))["color"]


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


def test_a_sweep_without_random_codes_has_no_null() -> None:
    found = exit_report(methods=("span", "svd"), layers="final", anchors=4)
    names = [trace.name for trace in sweep_plot.sweep(found).data]
    assert names.count("span") == names.count("svd") == 2 and NULL not in names
    assert len(sweep_plot.sweep(at_a_glance()).data) == 0


def test_curves_have_a_line_for_each_signal() -> None:
    found = exit_report()
    for trace in plots.loss_bins(found).data:
        bins = found.methods[trace.name].loss_bins
        assert list(trace.y) == [row.cosine.mean if row.cosine else None for row in bins]
    for trace in plots.layers(found).data:
        rows = {row.layer: row for row in found.layers if row.method == trace.name}
        assert list(trace.x) == [0, 3] and [trace.y[0], trace.y[1]] == [row.cosine.mean for row in (rows[0], rows[3]) if row.cosine]


def test_cost_is_in_milliseconds_and_megabytes() -> None:
    found = exit_report()
    for draw, scale, of in ((plots.seconds, 1e3, "seconds"), (plots.memory, 1e-6, "peak_bytes")):
        for trace, form in zip(draw(found).data, plots.FORMS.values(), strict=True):
            assert list(trace.x) == pytest.approx([scale * getattr(row, of) for row in found.cost.rows if row.form == form])
            assert [said[0] for said in trace.customdata] == [EXACT, *found.methods]


def test_names_in_figures_are_text_and_short() -> None:
    hostile = hostile_exit_report()
    for draw in ALL:
        drawn = json.dumps(draw(hostile).to_plotly_json(), default=list, allow_nan=False)
        assert "<img" not in drawn and "\\u202e" not in drawn and "x" * 100 not in drawn
    assert "&lt;img" in json.dumps(plots.seconds(hostile).to_plotly_json(), default=list)
