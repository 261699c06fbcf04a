"""The figures of gradient conflict: what they draw, that colours are centred, and that sample texts in them are text."""

import json
from typing import Any

import pytest

from analyzers.gradient_conflict import ConflictReport
from analyzers.gradient_conflict.published import published
from analyzers.gradient_conflict.report import Sample
from components.conflict import plots
from tests.components.conflict_reports import conflict_report, hostile_conflict_report, top_k
from tests.gradient_conflict.test_published import as_published

ALL = (plots.rates, plots.similarity, plots.cosines, plots.dominance, plots.batches, plots.deciles, plots.published)


def _of(report: ConflictReport, cosines: Any, samples: tuple[Sample, ...]) -> ConflictReport:
    found = report.cosines.model_copy(update={"model": cosines})
    return report.model_copy(update={"cosines": found, "samples": samples})


def test_rates_and_similarities_are_drawn_by_layer_with_their_intervals_top_k_beside_the_original() -> None:
    found = top_k()
    assert found.original is not None
    for draw, name, interval, scale in (
        (plots.rates, "conflict_rate", "interval", 100),
        (plots.similarity, "magnitude_similarity", "magnitude_interval", 1),
    ):
        figure: Any = draw(found)
        assert [trace.name for trace in figure.data] == ["top-k FFN", "original FFN"]
        assert figure.layout.showlegend
        for trace, ffn in zip(figure.data, ("topk", "original"), strict=True):
            rows = {row.layer: row for row in found.layers if row.ffn == ffn}
            assert list(trace.x) == [0, 1, 2, 3]
            for place, layer in enumerate(trace.x):
                value, between = getattr(rows[layer], name), getattr(rows[layer], interval)
                assert trace.y[place] == pytest.approx(scale * value)
                assert trace.y[place] + trace.error_y.array[place] == pytest.approx(scale * between.high)
                assert trace.y[place] - trace.error_y.arrayminus[place] == pytest.approx(scale * between.low)
    alone: Any = plots.rates(conflict_report())
    assert [trace.name for trace in alone.data] == ["neurons"] and not alone.layout.showlegend


def test_the_chance_of_unrelated_gradients_is_drawn_where_there_is_one() -> None:
    for draw in (plots.rates, plots.batches, plots.deciles, plots.published):
        figure: Any = draw(conflict_report())
        assert figure.layout.shapes[0].y0 == figure.layout.shapes[0].y1 == 50
        assert [note.text for note in figure.layout.annotations] == ["dashed: unrelated gradients, about 50%"]
        assert figure.layout.yaxis.autorangeoptions.include == 50
    assert not plots.similarity(conflict_report()).layout.shapes
    found = conflict_report()
    other = found.model_copy(update={"request": found.request.model_copy(update={"gamma": 0.1})})
    assert not plots.rates(other).layout.shapes and plots.published(other).layout.shapes


def test_cosines_are_centred_at_zero_and_every_cell_names_both_samples() -> None:
    found = conflict_report()
    (cells,) = plots.cosines(found).data
    assert (cells.zmin, cells.zmid, cells.zmax) == (-1, 0, 1)
    assert [stop for stop, _ in cells.colorscale] == pytest.approx(sorted(1 - stop for stop, _ in cells.colorscale))
    for row, line in enumerate(cells.z):
        for column, value in enumerate(line):
            assert value == (None if row == column else found.cosines.model[row][column])
    assert list(cells.x) == list(cells.y) and len({*cells.x}) == len(found.samples)
    for number, (name, sample) in enumerate(zip(cells.x, found.samples, strict=True)):
        assert name.startswith(f"{number}: ")
        assert name.split(": ", 1)[1].split("<br>")[0][:15].replace("&#x27;", "'") in sample.text.replace("\n", " ")


@pytest.mark.parametrize(("samples", "cell"), [(2, 90), (8, 45), (50, 7), (256, 2)])
def test_cells_between_samples_are_square_and_of_whole_pixels(samples: int, cell: int) -> None:
    found = conflict_report()
    values = tuple(tuple((row * column) % 7 / 10 for column in range(samples)) for row in range(samples))
    several = tuple(found.samples[row % 8].model_copy(update={"text": f"{row}"}) for row in range(samples))
    layout: Any = plots.cosines(_of(found, values, several)).layout
    assert layout.height - layout.margin.t - layout.margin.b == samples * cell
    assert (layout.yaxis.scaleanchor, layout.xaxis.constrain, layout.yaxis.constrain) == ("x", "domain", "domain")


def test_one_cosine_for_every_pair_is_said_and_has_no_scale() -> None:
    found = conflict_report()
    same = tuple(tuple(1.0 if row == column else 0.25 for column in range(8)) for row in range(8))
    figure: Any = plots.cosines(_of(found, same, found.samples))
    assert not figure.data[0].showscale
    assert [note.text for note in figure.layout.annotations] == ["Every pair of samples: cosine 0.25"]
    assert plots.cosines(found).data[0].showscale is not False


def test_each_sample_has_its_part_and_the_line_is_an_equal_one() -> None:
    found = conflict_report()
    figure: Any = plots.dominance(found)
    assert sum(figure.data[0].y) == pytest.approx(100)
    assert figure.layout.shapes[0].y0 == figure.layout.shapes[0].y1 == pytest.approx(100 / 8)


def test_batches_begin_with_single_samples_and_deciles_with_the_least_active() -> None:
    found = top_k()
    figure: Any = plots.batches(found)
    names = ["top-k FFN", "whole gradient, top-k FFN", "original FFN", "whole gradient, original FFN"]
    assert [trace.name for trace in figure.data] == names
    assert [list(trace.x) for trace in figure.data] == [[1, 2, 4]] * 4
    assert found.model.conflict_rate is not None and found.original is not None
    assert figure.data[0].y[0] == pytest.approx(100 * found.model.conflict_rate)
    first = next(row for row in found.batch_curve if row.ffn == "original")
    assert figure.data[3].y[1] == pytest.approx(100 * (first.whole_conflict_rate or 0))
    assert [trace.name for trace in plots.batches(conflict_report()).data] == ["neurons", "whole gradient"]
    (deciles, _) = plots.deciles(found).data
    assert list(deciles.x) == list(range(1, 11))
    assert list(deciles.y) == pytest.approx([100 * (row.conflict_rate or 0) for row in found.deciles if row.ffn == "topk"])


def test_a_run_of_the_published_model_is_drawn_next_to_it() -> None:
    found = as_published()
    figure: Any = plots.published(found)
    theirs, ours = figure.data
    assert [theirs.name, ours.name] == ["published", "this run"]
    assert list(theirs.y) == pytest.approx([100 * row.conflict_rate for row in published()])
    rates = {row.layer: row.conflict_rate_historic for row in found.layers if row.ffn == "topk"}
    assert list(ours.y) == pytest.approx([100 * (rates[layer] or 0) for layer in ours.x])
    assert "Published conflict rates" in found.plots() and "Published conflict rates" not in top_k().plots()


@pytest.mark.parametrize("samples", [2, 3])
def test_two_samples_are_enough_to_draw(samples: int) -> None:
    found = conflict_report(samples=samples)
    for draw in ALL:
        json.dumps(draw(found).to_plotly_json(), default=list, allow_nan=False)


def test_sample_texts_in_figures_are_text_and_short() -> None:
    hostile = hostile_conflict_report()
    for draw in ALL:
        drawn = json.dumps(draw(hostile).to_plotly_json(), default=list)
        assert "<img" not in drawn and "\\u202e" not in drawn and "\u202e" not in drawn
        assert "x" * 100 not in drawn
    assert "&lt;img" in json.dumps(plots.cosines(hostile).to_plotly_json(), default=list)
