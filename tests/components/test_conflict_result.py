"""The result of a measurement: headline and tiles, tables, progress, what is taken along, and that text from outside stays text."""

import re
import zipfile
from html import unescape
from io import BytesIO
from types import SimpleNamespace
from typing import Any

import pytest

from analyzers.base import Progress
from analyzers.gradient_conflict import ConflictReport
from analyzers.gradient_conflict.columns import BATCHES, BLOCKS, DECILES, DIFFERENCES, NEURONS, RAN_SAMPLES, WEIGHTS, excerpts
from analyzers.gradient_conflict.published import published
from analyzers.gradient_conflict.report import LayerRate, MeasuredProgress
from analyzers.gradient_conflict.summaries import TAU, Undecided
from analyzers.records import Interval
from components.conflict import methods
from components.conflict.page import LayerMeter
from components.conflict.result import headline, published_layers
from components.conflict.text import captions
from components.results.downloads import tables_zip
from components.results.html_documents import document
from components.results.tables import Sortable, listed
from components.running import progress
from tests.components.conflict_reports import conflict_report, hostile_conflict_report, top_k
from tests.components.dtype_reports import HOSTILE
from tests.components.html_text import rows_of, text_of
from tests.gradient_conflict.test_published import as_published


def _changed(report: ConflictReport, **model: Any) -> ConflictReport:
    return report.model_copy(update={"model": report.model.model_copy(update=model)})


def test_the_number_stands_first_with_what_it_means() -> None:
    found = conflict_report()
    said = text_of(headline(found))
    rate = f"{100 * (found.model.conflict_rate or 0):.3g}%"
    assert f"conflict in {rate} of all combinations (95% interval " in said
    assert "; unrelated gradients: about 50%). What now?" in said
    assert all(sentence in said for sentence in found.more_findings()) and len(found.more_findings()) == 1
    assert "640 neurons in 4 layers, 8 samples of pairs given" in said
    assert [each in said for each in ("Whole gradients", "Gradient-norm similarity", "Dominance", "Noise scale")] == [True] * 4
    assert f"{found.dominance.effective_samples:.3g} of 8 fact" in said
    assert "built-in sample: trained in pure bf16" in said
    assert "numerically undecided" not in said
    assert found.statement.startswith(
        f"In {rate} of the (pair of samples, neuron) combinations the two gradients point in opposite directions ("
    )
    assert "by the jackknife over samples; unrelated gradients: about 50%)" in found.statement
    assert "50%)" not in conflict_report(gamma=0.1).statement  # chance depends on the threshold


def test_top_k_is_compared_with_the_original_and_no_clear_difference_is_said_to_be_none() -> None:
    found = top_k()
    said = text_of(headline(found))
    assert "Top-k against original" in said and "Tokens keep 12.5% of the neurons." in said and "Noise scale" not in said
    assert found.original is not None
    before, after = (f"{100 * (side.model.conflict_rate or 0):.3g}%" for side in (found.original, found))
    assert before != after and f" in {before} of all combinations (" in said and f"); {after} with top-k. What now?" in said
    assert found.statement.startswith(f"In {before} of the (pair of samples, neuron) combinations")
    assert f". With the top-k FFN in layers 0 to 3 the rate is {after}, a change of " in found.statement
    whole = [f"{100 * (side.model.whole.conflict_rate or 0):.3g}%" for side in (found.original, found)]
    sizes = [f"{side.dominance.effective_samples:.3g} of 8" for side in (found.original, found)]
    assert f"Whole gradients {whole[0]} → {whole[1]} with top-k" in said
    assert f"Dominance {sizes[0]} → {sizes[1]} with top-k" in said
    for shown in (found.text(), document([found])):
        assert all(sentence in unescape(shown) for sentence in found.more_findings())
    first = found.differences[0]
    assert first.interval is not None
    unclear = first.model_copy(update={"interval": first.interval.model_copy(update={"low": -0.01, "high": 0.02})})
    assert "no clear difference" in text_of(headline(found.model_copy(update={"differences": (unclear, *found.differences[1:])})))


def test_the_headline_never_says_more_than_is_known() -> None:
    found = conflict_report()
    open_wide = found.model.undecided.model_copy(update={"low": 0.2, "high": 0.7, "share": 0.5})
    assert "In float32 the rate is numerically undecided from 20% to 70%" in text_of(headline(_changed(found, undecided=open_wide)))
    nothing = found.model.whole.model_copy(update={"conflict_rate": None, "noise_scale": None})
    said = text_of(headline(_changed(found, whole=nothing, conflict_rate=None, interval=None)))
    assert said.count("Cannot tell not decided") == 2 and "95% interval" not in said
    none = found.dominance.model_copy(update={"effective_samples": None, "top_share": None, "top_sample": None})
    assert "No sample has a gradient" in headline(found.model_copy(update={"dominance": none}))


@pytest.mark.parametrize(
    ("interval", "undecided", "asked", "verdict"),
    [
        ((0.42, 0.55), (0.48, 0.49), {}, "No more conflict than chance is shown: the gradients"),
        ((0.505, 0.56), (0.48, 0.49), {}, "No more conflict than chance is shown: the gradients"),  # 8 samples along one direction: 57%
        ((0.6, 0.7), (0.64, 0.66), {}, "More conflict than chance: the gradients"),
        ((0.58, 0.7), (0.4, 0.65), {}, "Numerically undecided whether there is more conflict than chance: the gradients"),
        ((0.2, 0.4), (0.29, 0.31), {}, "Less conflict than chance: the gradients"),
        ((0.2, 0.4), (0.29, 0.45), {}, "Numerically undecided whether there is less conflict than chance: the gradients"),
        (None, (0.29, 0.31), {}, "Too few samples to compare with chance: the gradients"),
        ((0.2, 0.4), (0.29, 0.31), {"gamma": 0.1}, "The gradients"),
    ],
)
def test_the_headline_compares_with_chance(
    interval: tuple[float, float] | None, undecided: tuple[float, float], asked: dict[str, Any], verdict: str
) -> None:
    found = conflict_report(**asked)
    low, high = undecided
    rate = sum(interval or undecided) / 2
    ends = None if interval is None else Interval(estimate=rate, low=interval[0], high=interval[1])
    changed = _changed(found, conflict_rate=rate, interval=ends, undecided=Undecided(low=low, high=high, share=high - low))
    assert changed.headline().startswith(f"{verdict} of two samples ")


def test_layers_and_blocks_sort_by_exact_values_and_read_in_few_digits() -> None:
    found = top_k()
    table = Sortable(BLOCKS, "m-layers-table").value(found)
    assert [row[:3] for row in table["data"][:7]] == [
        [None, "topk", block] for block in ("all", "gate", "up", "down", "gate+up", "gate+down", "up+down")
    ]
    assert len(table["data"]) == 2 * 5 * 7
    exact = dict(zip(table["headers"], table["data"][7], strict=True))
    read = dict(zip(table["headers"], table["metadata"]["display_value"][7], strict=True))
    last = found.layers[0]
    assert (exact["Layer"], exact["Conflict"], exact["Units"]) == (3, last.conflict_rate, last.neurons)
    assert read["Conflict"] == f"{100 * (last.conflict_rate or 0):.3g}%"
    attention = Sortable(BLOCKS, "m-layers-table").value(conflict_report(unit="attention"))
    assert [row[2] for row in attention["data"][:5]] == ["all", "q", "k", "v", "o"]
    assert len(rows_of(listed(BLOCKS, found))) == len(table["data"])


def test_samples_are_shown_as_they_were_run() -> None:
    found = conflict_report()
    table = Sortable(RAN_SAMPLES, "m-samples-table").value(found)
    for line, sample in zip(table["data"], found.samples, strict=True):
        row = dict(zip(table["headers"], line, strict=True))
        assert row["Text"] == " ".join(sample.text.split("\n")).strip() or row["Text"].endswith("…")
        assert (row["Tokens"], row["Loss"]) == (len(sample.token_ids or ()), sample.loss)
        assert row["Answer tokens"] == len(sample.token_ids or ()) - (sample.answer_start or 0)
    assert len(rows_of(listed(RAN_SAMPLES, found))) == 8
    assert f"{found.data.tokens:,} tokens" in captions.samples(found)


def test_the_most_and_the_least_conflicted_neurons_are_listed() -> None:
    found = top_k()
    table = Sortable(NEURONS, "m-neurons-table").value(found)
    assert found.neurons is not None and found.original is not None and found.original.neurons is not None
    assert len(table["data"]) == 2 * 400 == len(rows_of(listed(NEURONS, found)))
    first = dict(zip(table["headers"], table["data"][0], strict=True))
    row = found.neurons.most[0]
    assert first["Neuron"] == f"Layer {row.layer}, neuron {row.neuron}" and first["FFN"] == "topk" and first["Most or least"] == "most"
    assert (first["Conflict"], first["Top sample"], first["Its share"]) == (row.conflict_rate, row.top_sample, row.top_share)
    assert "The most and the least conflicted of 640 neurons" in captions.neurons(found)
    attention = Sortable(NEURONS, "m-neurons-table").value(conflict_report(unit="attention"))
    assert all(re.fullmatch(r"Layer \d, [qkvo], row \d+", row[0]) for row in attention["data"])


def test_dominance_of_a_neuron_is_compared_in_sentence_and_table() -> None:
    found = top_k()
    assert found.original is not None
    rows = list(zip(found.layers, found.original.layers, found.differences[1:], strict=True))
    for row, unchanged, change in rows:
        assert change.neuron_top_share == pytest.approx((row.neuron_top_share or 0) - (unchanged.neuron_top_share or 0))
        assert change.neuron_effective_samples == pytest.approx(
            (row.neuron_effective_samples or 0) - (unchanged.neuron_effective_samples or 0)
        )
    after = sum(row.neuron_effective_samples or 0 for row in found.layers) / 4  # layers have as many neurons each
    before = sum(row.neuron_effective_samples or 0 for row in found.original.layers) / 4
    assert f"the effective sample size from {before:.3g} to {after:.3g}." in found.statement
    assert ("one sample dominates more" in found.statement) == (after < before)
    cells = rows_of(listed(DIFFERENCES, found))[1]
    assert cells[-1] == f"{found.differences[1].neuron_effective_samples:+.2g}" and cells[-2].endswith("points")
    assert "dominance does not clearly change" in conflict_report(ffn="topk", topk=1.0).statement


def test_excerpts_leave_out_what_all_samples_begin_with() -> None:
    found = conflict_report(samples=3)
    texts = [f"Below is a task.\n\n### Task:\n{word} it." for word in ("Show", "Sort", "Tell")]
    samples = tuple(each.model_copy(update={"text": text}) for each, text in zip(found.samples, texts, strict=True))
    assert excerpts(found.model_copy(update={"samples": samples}), 64) == ["Show it.", "Sort it.", "Tell it."]
    same = tuple(each.model_copy(update={"text": "Same text."}) for each in found.samples)
    assert excerpts(found.model_copy(update={"samples": same}), 64) == ["Same text."] * 3


def test_tables_have_every_row() -> None:
    found = top_k()
    assert [row[0] for row in rows_of(listed(DIFFERENCES, found))] == ["model", "3", "2", "1", "0"]
    assert listed(DIFFERENCES, conflict_report()) == ""
    assert [row[0] for row in rows_of(listed(BATCHES, conflict_report()))] == ["1", "2", "4"]
    assert len(rows_of(listed(DECILES, found))) == 20 and listed(DECILES, conflict_report(unit="attention")) == ""
    assert len(rows_of(listed(WEIGHTS, found))) == 10 and listed(WEIGHTS, conflict_report(weights=False)) == ""


def test_the_published_layers_stand_beside_a_run_of_that_model_only() -> None:
    rows = rows_of(published_layers(conflict_report()))
    assert len(rows) == len(published()) == 32 and len(rows[0]) == 3 and (rows[31][0], rows[31][2]) == ("31", "–")
    assert "differs in the model, the top-k FFN, the data" in captions.published(conflict_report())
    assert "differs in the samples and the template, so" in captions.published(as_published(template="plain", seed=1))
    found = as_published()
    beside = rows_of(published_layers(found))
    assert len(beside[0]) == 5
    ours = next(row for row in found.layers if row.layer == 0)
    assert beside[0][2] == f"{100 * (ours.conflict_rate_historic or 0):.3g}%"
    assert "drawn next to it, by the same definition" in captions.published(found)


def test_progress_shows_the_rates_of_the_layers_measured_so_far() -> None:
    rates = (LayerRate(layer=3, conflict_rate=0.372), LayerRate(layer=2, conflict_rate=None))
    said = LayerMeter().show(MeasuredProgress(done=2, total=4, unit="layers", note="gradients: layer 1", rates=rates))
    assert "Gradients: layer 1 50%, 2 of 4 layers" in text_of(said)
    assert "In conflict, by layer 3 37.2% 2 –" in text_of(said)
    assert "In conflict" not in LayerMeter().show(Progress(done=1, total=4, unit="bytes", note="downloading"))


def test_the_time_left_is_that_of_the_work_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    meter = LayerMeter()
    for seconds, done, unit in ((0, 0, "bytes"), (60, 4, "bytes"), (61, 0, "layers"), (63, 1, "layers")):
        now[0] = 200 + seconds
        said = meter.show(Progress(done=done, total=4, unit=unit))
    assert "25%, 1 of 4 layers, about 6.0 s left on this machine" in said
    for seconds, done, total in ((70, 0, 0), (90, 1, 5), (92, 2, 5)):  # loading, which is not counted, and the first layer
        now[0] = 200 + seconds
        said = meter.show(Progress(done=done, total=total, unit="steps"))
    assert "40%, 2 of 5 steps, about 6.0 s left on this machine" in said


def test_text_from_outside_stays_text() -> None:
    hostile = hostile_conflict_report()
    own = re.sub(r"<script>.*?</script>", "", document([conflict_report(), hostile]), flags=re.DOTALL)
    for html in (headline(hostile), listed(RAN_SAMPLES, hostile), f"<p>{captions.samples(hostile)}</p>", own):
        assert "<img" not in html or html.startswith("<p>")  # a caption is plain text, escaped where it meets HTML
        assert "\u202e" not in html
    assert "&lt;img" in own and "&lt;img" in headline(hostile)
    assert HOSTILE in hostile.summary  # plain text: escaped where it meets HTML
    assert not re.search(r"""(src|@import|url)\s*[=(]\s*["']?(https?:)?//""", own)
    archive = zipfile.ZipFile(BytesIO(tables_zip([hostile])))
    assert {"summary.csv", "layers.csv", "blocks.csv", "samples.csv", "batches.csv", "deciles.csv", "cosines.csv"} <= set(
        archive.namelist()
    )


def test_the_page_taken_along_has_everything_of_every_report() -> None:
    page = document([top_k(), conflict_report(unit="attention", weights=False)])
    assert page.count('data-figure="') == 8 + 7
    assert re.findall(r'<article id="(report-\d)">', page) == ["report-1", "report-2"]
    assert "<title>Gradient conflict: sample:tiny-bf16, sample:tiny-bf16</title>" in page
    assert page.count("<summary>Weights</summary>") == 1


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
def test_the_methods_page_says_what_the_arithmetic_leaves_open(name: str) -> None:
    assert f"{TAU[name]:g} in {name}" in methods.methods()
