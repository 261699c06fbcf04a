"""The result of exit feedback: headline and tiles, tables, progress, downloads; text from outside stays text."""

import re
import zipfile
from io import BytesIO

import pytest

from analyzers.base import Progress
from analyzers.exit_feedback import ExitProgress, ExitReport
from analyzers.exit_feedback.columns import BY_LAYER, BY_LOSS, COST, ENERGY, SEEDS, SIGNALS, SWEEP, cosine, signal_name
from analyzers.exit_feedback.measurements import OverSeeds
from analyzers.exit_feedback.sentences import statement
from analyzers.formatting import powers
from components.exit import text
from components.exit.methods import methods
from components.exit.page import SignalMeter
from components.exit.result import headline
from components.exit.text import captions
from components.results.downloads import tables_zip
from components.results.html_documents import document
from components.results.tables import Sortable, listed
from components.site import addresses
from tests.components.dtype_reports import HOSTILE
from tests.components.exit_reports import at_a_glance, exit_report, hostile_exit_report
from tests.components.html_text import rows_of, text_of


def _over(found: ExitReport, mean: float, error: float | None, seeds: int) -> ExitReport:
    """``found`` with another mean over seeds of dense."""
    over = OverSeeds(mean=mean, standard_error=error, seeds=tuple(range(seeds)), values=(mean,) * seeds)
    dense = found.methods["dense"].model_copy(update={"over_seeds": over})
    return found.model_copy(update={"methods": found.methods | {"dense": dense}})


def test_the_reading_stands_first_with_four_tiles() -> None:
    found = exit_report()
    said = text_of(headline(found))
    for sentence in found.statement.replace(". ", ".\n").splitlines():
        assert " ".join(powers(sentence).split()) in said.replace("\u00a0", " ")
    assert f"Head 512 x 64, tied, {found.inputs.measured} tokens of 3 samples of the built-in text, float32" in said
    assert "built-in sample: trained in pure bf16" in said
    assert said.count(" fact ") + said.count(" estimate ") + said.count("not decided") == 4
    best = max((each.cosine.mean, name) for name, each in found.methods.items() if each.cosine and name not in ("svd", "true_rows"))
    assert f"Closest without backpropagation {best[1]} fact Mean cosine {best[0]:.3f}" in said


@pytest.mark.parametrize(
    ("mean", "error", "seeds", "tile", "caption"),
    [
        (0.005, 0.004, 8, "0.005 ± 0.004 estimate", "on a frozen model is within noise of 0: 0.005 ± 0.004"),
        (-0.02, 0.004, 8, "beyond noise", "is beyond noise: -0.020 ± 0.004"),
        (1e-5, 2e-4, 4, "0.000 ± 0.0002 estimate", "is within noise of 0"),
        (0.009, 0.004, 8, "within noise of 0", "is within noise of 0"),  # 2.25 standard errors, of the 2.36 of Student's t
        (
            0.01,
            1e-4,
            3,
            "Cannot tell not decided Mean cosine of dense on the frozen model: 0.010 for 3 seeds",
            "0.010 for 3 seeds, too few to tell it from noise",
        ),
        (0.01, None, 1, "Cannot tell not decided Mean cosine", "on a frozen model: 0.010 for 1 seed, too few to tell it from noise"),
    ],
)
def test_random_codes_are_said_to_be_noise_where_they_are(mean: float, error: float | None, seeds: int, tile: str, caption: str) -> None:
    found = _over(exit_report(), mean, error, seeds)
    assert tile in text_of(headline(found))
    assert caption in captions.at_head(found)
    (said,) = (sentence for sentence in _reading(found).split(". ") if "random codes (dense)" in sentence)
    for verdict in ("within noise of 0", "too few to tell it from noise"):
        assert (verdict in said) == (verdict in caption)


def _reading(found: ExitReport) -> str:
    """The statement that the analyzer makes of what is in a report."""
    return statement(found.exact, found.methods, found.null)


def test_the_methods_page_says_what_random_codes_are_on_a_frozen_model() -> None:
    assert "Mean cosine of random codes on a frozen model is within noise of 0." in methods()


def test_the_headline_says_what_there_is_not() -> None:
    found = at_a_glance()
    said = text_of(headline(found))
    assert "Neither dense nor hybrid was requested" in said
    assert re.search(
        r"Time (about as long|[\d.,]+ times (faster|as long)) estimate \w+, the fastest practical signal, compared with the", said
    )
    nothing = found.methods["span"].model_copy(update={"cosine": None})
    exact = found.exact.model_copy(update={"parallel_energy": None})
    empty = found.model_copy(update={"methods": {"span": nothing}, "exact": exact, "cost": found.cost.model_copy(update={"rows": ()})})
    assert text_of(headline(empty)).count("Cannot tell not decided") == 4


def test_tables_have_every_row() -> None:
    found = exit_report()
    names = list(found.methods)
    said = [f"{name} (ceiling)" if name in ("svd", "true_rows") else name for name in names]
    assert [row[0] for row in rows_of(listed(SIGNALS, found))] == said
    assert [row[0] for row in rows_of(listed(ENERGY, found))] == ["exact", *said]
    assert [row[0] for row in rows_of(listed(SEEDS, found))] == [
        "dense",
        "hybrid",
        "parallel_gold",
        "parallel_topmass",
        "fresh_codes (null)",
    ]
    assert listed(SEEDS, at_a_glance()) == ""
    assert [row[0] for row in rows_of(listed(BY_LOSS, found))] == [*said, "Exact gradient's energy"]
    assert [row[0] for row in rows_of(listed(BY_LAYER, found))] == ["3", "0"]
    cost = rows_of(listed(COST, found))
    assert [row[0] for row in cost] == [signal_name(row.method) for row in found.cost.rows]
    assert ["1.00", "1.00"] in [[row[3], row[5]] for row in cost if row[:2] == ["exact", found.cost.exact_form]]
    signals = dict(zip(names, rows_of(listed(SIGNALS, found)), strict=True))
    assert signals["span"][1] == f"{found.methods['span'].cosine.mean:.3f}"  # type: ignore[union-attr]
    assert signals["hybrid"][9] == "rank 32, exact 8, k 8, top-k by value, alpha 1"
    assert signals["parallel_topmass"][9] == "rank 32, lambda 0.1, mass 0.95" and signals["parallel"][9] == "–"


def test_the_headline_names_the_ceilings_that_are_closer() -> None:
    found = exit_report()
    means = {name: method.cosine.mean for name, method in found.methods.items() if method.cosine is not None}
    best = max((name for name in means if name not in ("svd", "true_rows")), key=means.__getitem__)
    above = [f"{name} ({cosine(means[name])})" for name in ("svd", "true_rows") if means[name] > means[best]]
    assert above
    assert found.headline().endswith(f"; only ceilings, which read the head's weight, come closer: {' and '.join(above)}.")
    assert f" {cosine(means[best])} with the exact gradient" in found.headline()  # the digits of the table and the tile
    alone = exit_report(methods=("svd",), sweep=False, layers="final")
    assert alone.headline().startswith("The ceiling svd has a mean cosine of ")
    below = found.methods | dict.fromkeys(("svd", "true_rows"), found.methods["dense"])
    assert "ceiling" not in found.model_copy(update={"methods": below}).headline()


def test_a_page_tells_each_fact_of_the_inputs_once() -> None:
    found = exit_report(tokens=20, sweep=False, layers="final")
    page = text_of(document([found]))
    assert found.inputs.measured < found.inputs.answer_tokens
    assert page.count(f"{found.inputs.measured} of the {found.inputs.answer_tokens} answer tokens were measured") == 1
    assert page.count("were measured") == 1 and not re.search(r"\de-\d+%", page)


def test_along_and_across_are_told_without_a_row_of_nines() -> None:
    rows = {row[0]: row[1:] for row in rows_of(listed(ENERGY, exit_report()))}
    assert rows["parallel"][:2] == ["100%", "0%"]
    assert rows["exact"][2:] == ["< 0.0001%", "> 99.9999%"] and float(rows["exact"][0].removesuffix("%")) > 0.1


def test_the_sweep_sorts_by_exact_values_and_reads_in_few_digits() -> None:
    found = exit_report()
    table = Sortable(SWEEP, "m-sweep-table").value(found)
    assert len(table["data"]) == len(found.sweep) == len(rows_of(listed(SWEEP, found)))
    assert [row[1] for row in table["data"]].index("seed") == sum(row.parameter != "seed" for row in found.sweep)
    exact = dict(zip(table["headers"], table["data"][0], strict=True))
    read = dict(zip(table["headers"], table["metadata"]["display_value"][0], strict=True))
    first = next(row for row in found.sweep if row.parameter != "seed")
    assert first.cosine is not None
    assert (exact["Mean cosine"], exact["Value"], read["Kind"]) == (first.cosine.mean, first.value, "signal")
    assert read["Mean cosine"] == f"{first.cosine.mean:.3f}".replace("-0.000", "0.000")
    assert {row[-1] for row in table["metadata"]["display_value"]} == {"signal", "ceiling", "null"}


def test_legends_name_what_is_drawn() -> None:
    found = exit_report()
    names = " ".join(map(signal_name, found.methods))
    assert text_of(text.signal_legend(found)) == names
    assert text_of(text.sweep_legend(found)) == f"{names} fresh_codes (null)"
    assert "fresh_codes" not in text.sweep_legend(at_a_glance()) + captions.sweep(at_a_glance())


def test_progress_shows_what_each_signal_reached() -> None:
    step = ExitProgress(
        done=3, total=6, unit="steps", note="logit lens: layer 0", stage="layers", cosines={"span": 0.86, "svd": None},
    )  # fmt: skip
    said = text_of(SignalMeter().show(step))
    assert "Logit lens: layer 0 50%, 3 of 6 steps" in said
    assert "Mean cosine with the exact gradient span 0.860 svd (ceiling) –" in said
    assert "cosine" not in SignalMeter().show(Progress(done=1, total=4, unit="bytes", note="downloading"))


def test_text_from_outside_stays_text() -> None:
    hostile = hostile_exit_report()
    own = re.sub(r"<script>.*?</script>", "", document([exit_report(), hostile]), flags=re.DOTALL)
    for html in (headline(hostile), *(listed(table, hostile) for table in (SIGNALS, COST, SWEEP)), own):
        assert "<img" not in html and "\u202e" not in html
    assert "&lt;img" in own and "&lt;img" in headline(hostile)
    assert HOSTILE in hostile.summary  # plain text: escaped where it meets HTML
    assert not re.search(r"""(src|@import|url)\s*[=(]\s*["']?(https?:)?//""", own)
    archive = zipfile.ZipFile(BytesIO(tables_zip([hostile])))
    wanted = {"summary", "methods", "loss_bins", "histogram", "layers", "sweep", "cost"}
    assert {f"{name}.csv" for name in wanted} <= set(archive.namelist())


def test_the_page_taken_along_has_everything_of_every_report() -> None:
    page = document([exit_report(), at_a_glance()])
    assert page.count('data-figure="') == 8 + 6
    assert re.findall(r'<article id="(report-\d)">', page) == ["report-1", "report-2"]
    assert "<title>Backprop-free gradients: sample:tiny-bf16, sample:tiny-bf16</title>" in page
    assert len({*re.findall(r'data-figure="([^"]+)"', page)}) == 14


def test_a_stored_report_leads_back_to_its_page() -> None:
    assert addresses.recompute(at_a_glance()).startswith("exit?model=sample%3Atiny-bf16&methods=parallel%2Cspan%2Csvd")


@pytest.mark.parametrize(("factor", "slower"), [(3.0, True), (1.0, True), (0.25, False)])
def test_the_advice_follows_the_measured_seconds(factor: float, slower: bool) -> None:
    found = exit_report()
    cosines = {name: each.cosine.mean for name, each in found.methods.items() if each.cosine and name not in ("svd", "true_rows")}
    best = max(cosines, key=cosines.__getitem__)
    exact = min(row.seconds for row in found.cost.rows if row.method == "exact")
    rows = tuple(row.model_copy(update={"seconds": factor * exact}) if row.method == best else row for row in found.cost.rows)
    advice = found.model_copy(update={"cost": found.cost.model_copy(update={"rows": rows})}).next_step().advice
    told = f"{best} is the closest signal without it, but takes {factor:.3g} times as long as the exact gradient."
    assert (advice == f"Keep backpropagation here: {told}") == slower
    assert slower or "Keep" not in advice
    assert "times as long" not in found.model_copy(update={"cost": found.cost.model_copy(update={"rows": ()})}).next_step().advice


@pytest.mark.parametrize(
    ("ratio", "said"), [(0.09, "11.1 times faster"), (0.97, "about as long"), (1.0, "about as long"), (3.5, "3.5 times as long")]
)
def test_the_time_of_the_fastest_signal_is_in_words(ratio: float, said: str) -> None:
    found = at_a_glance()
    rows = tuple(row if row.method == "exact" else row.model_copy(update={"time_ratio": ratio}) for row in found.cost.rows)
    report = found.model_copy(update={"cost": found.cost.model_copy(update={"rows": rows})})
    assert f"Time {said} estimate" in text_of(headline(report))
