"""The result of a run: headline and tiles, tables, progress, what is taken along, and that text from outside stays text."""

import re
import zipfile
from io import BytesIO
from typing import Any

import pytest

from analyzers import limits
from analyzers.base import Progress
from analyzers.precision_variants import ABOUT, PrecisionReport, VariantProgress
from analyzers.precision_variants.columns import BACKWARD, FORWARD, HEADROOM, LOGPROBS, PARAMETERS, SETTINGS, of_reference
from analyzers.precision_variants.fp16_passport import OTHERS, Extreme, Gradients, short
from components.plots.marks import marked
from components.precision.methods import methods
from components.precision.page import VariantMeter
from components.precision.result import headline
from components.precision.tables import LARGEST, left_out
from components.precision.text import captions
from components.results.downloads import tables_zip
from components.results.html_documents import document
from components.results.tables import listed
from components.text.legend import legend
from tests.components.dtype_reports import HOSTILE, of_model
from tests.components.html_text import rows_of, text_of
from tests.components.precision_reports import hostile_precision_report, overflowing, precision_report


def _changed(report: PrecisionReport, **reference: Any) -> PrecisionReport:
    return report.model_copy(update={"reference": report.reference.model_copy(update=reference)})


def test_the_reading_stands_first_a_sentence_a_line() -> None:
    found = precision_report()
    html = headline(found)
    sentences = [text_of(each) for each in re.findall(r"<li>(.*?)</li>", html)]
    assert " ".join(sentences) == found.statement.replace("\u00a0", " ")
    assert len(sentences) > 4 and html.index(found.headline()) < html.index("<li>")
    said = text_of(html)
    assert "4 layers, 205,376 parameters; 2 sequences of 24 tokens of the built-in text" in said
    assert "built-in sample: trained in pure bf16" in said


def test_tiles_name_the_closest_variant_the_worst_layer_the_ratio_and_the_headroom() -> None:
    found = precision_report()
    said = text_of(headline(found))
    of = {name: variant.logprobs for name, variant in found.variants.items()}
    assert f"Closest to fp32 fp16 Mean log-probability error {of['fp16'].mean:.2e}".replace("e-04", "e-4") in said
    worst = [found.variants[name].summary.mid_max or 0 for name in ("fp16", "bf16")]
    assert f"Worst layer {100 * worst[0]:.2g} to {100 * worst[1]:.2g}% Largest" in said
    assert f"from fp16 to bf16; for bf16 in layer {found.variants['bf16'].summary.mid_max_layer}." in said
    assert f"Importance ratio {100 * (of['bf16'].ratio_mean or 0):.3g}%" in said
    assert found.fp16_passport is not None
    assert f"Safe in fp16? On these texts {short(found.fp16_passport)}" in said and said.count(OTHERS) == 2


def test_an_overflow_is_named_and_nothing_is_said_of_numbers_that_are_not() -> None:
    found = overflowing()
    said = text_of(headline(found))
    first = "layers.1.mlp.up_proj is the first module to exceed 65504"
    assert f"Safe in fp16? Overflows not safe Not safe in fp16 on these texts: {first}. {OTHERS}" in said
    assert "Closest to fp32 bf16 fact" in said and "largest for" not in said
    nothing = found.model_copy(update={"variants": {"fp16": found.variants["fp16"]}})
    assert text_of(headline(nothing)).count("Cannot tell not decided") == 3
    assert "nan" not in headline(nothing).lower().replace("nan-", "")
    assert found.fp16_passport is not None
    zero = found.fp16_passport.model_copy(update={"verdict": None, "weights": Extreme(), "forward": Extreme(), "backward": Gradients()})
    assert "all values are 0" in headline(found.model_copy(update={"fp16_passport": zero}))
    assert "run it again" in headline(found.model_copy(update={"fp16_passport": None}))


def test_a_risk_is_told_apart_and_the_tab_has_the_whole_answer() -> None:
    found = precision_report()
    assert found.fp16_passport is not None
    risk = found.fp16_passport.model_copy(update={"verdict": "at_risk", "forward": Extreme(margin_bits=1.5, module="layers.1", value=2.0)})
    said = text_of(headline(found.model_copy(update={"fp16_passport": risk})))
    assert f"Safe in fp16? At risk under 2 bits At risk in fp16 on these texts: a value comes within 1.5 bits of 65504. {OTHERS}" in said
    page = text_of(document([found]))
    assert found.fp16_passport.statement in page and "In fp16 this model is safe on these texts (2 sequences, 46 tokens)" in page


def test_a_column_has_as_many_decimals_as_its_smallest_value_needs() -> None:
    found = precision_report()
    rows = {row[0]: row[1:] for row in rows_of(listed(FORWARD, found))}
    assert list(rows) == list(found.variants)
    assert {*rows["fp32"]} == {"0"}
    for column, field in ((1, "mid_median"), (2, "mid_max"), (3, "logits"), (4, "head")):
        cells = [row[column] for row in rows.values() if row[column] != "0"]
        assert len({len(cell.partition(".")[2]) for cell in cells}) == 1
        assert min(len(cell.replace(".", "").lstrip("0")) for cell in cells) == 2
        assert float(rows["bf16"][column]) == pytest.approx(100 * getattr(found.variants["bf16"].summary, field), rel=0.05)
    backward = {row[0]: row[1:] for row in rows_of(listed(BACKWARD, found))}
    assert backward["fp16"][-1] == "2¹⁶" and backward["bf16"][-1] == "–"
    assert {*rows_of(listed(FORWARD, overflowing()))[1][2:]} == {"–"}
    assert rows_of(listed(BACKWARD, overflowing()))[1][-2:] == ["none", "–"]  # a policy gradient: loss scale, clipped


def test_tables_have_every_row() -> None:
    found = precision_report()
    assert [row[:2] for row in rows_of(listed(SETTINGS, found))][-1] == ["mine", "dtype=bf16, fp32=norms"]
    assert [row[0] for row in rows_of(listed(HEADROOM, found, of_reference(found)))] == ["emb.", "0", "1", "2", "3", "head"]
    assert [row[0] for row in rows_of(listed(PARAMETERS, found))] == [row.kind for row in found.variants["bf16"].parameter_kinds]
    assert [row[0] for row in rows_of(listed(LOGPROBS, found))] == list(found.variants)
    over = rows_of(listed(SETTINGS, overflowing()))[1]
    assert over[3] == "1: mlp.up_proj" and over[4] == "logits"
    (layer,) = [row for row in rows_of(listed(HEADROOM, overflowing(), of_reference(overflowing()))) if row[0] == "1"]
    assert float(layer[1]) < 0 and layer[2].endswith(" in mlp.up_proj") and layer[6].endswith(" in mlp.up_proj.weight")


def test_tensors_sort_by_exact_values_and_read_in_few_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    found = precision_report()
    table = LARGEST.value(found)
    rows = [(name, row) for name, variant in found.variants.items() for row in variant.tensors]
    assert len(table["data"]) == len(rows) == len(rows_of(LARGEST.html(found)))
    for line, (name, row) in zip(table["data"], rows, strict=True):
        exact = dict(zip(table["headers"], line, strict=True))
        assert exact["Max error"] == row.max_rel and exact["Shape"] == "x".join(map(str, row.shape or ()))
        assert (exact["Variant"], exact["Layer"], exact["Error"], exact["Residual"]) == (name, row.layer, row.rms_rel, row.residual)
    monkeypatch.setattr(limits, "REPORT_TENSORS", 40)
    assert left_out(found) == len(rows) - 40
    kept = LARGEST.value(found)["data"]
    assert len(kept) == 40
    largest = sorted((row.rms_rel or 0 for _, row in rows), reverse=True)[:40]
    assert sorted((line[5] for line in kept), reverse=True) == largest
    assert f"{len(rows) - 40} rows" in captions.tensors(left_out(found)) and "rows" not in captions.tensors(0)
    assert all(line[5] is None for line in LARGEST.value(overflowing())["data"][:40])


def test_figures_say_what_stands_at_their_edges() -> None:
    found, over = precision_report(), overflowing()
    assert '"exact"' in captions.forward(found) and '"overflow"' not in captions.forward(found)
    assert '"overflow"' in captions.forward(over) and '"overflow"' in captions.backward(over)
    assert "fp16 ran with a loss scale of 2¹⁶" in captions.backward(found)
    assert "No loss scale keeps the gradients of fp16 finite" in captions.backward(over)
    both = over.model_copy(update={"variants": {**over.variants, "fp16_autocast": over.variants["fp16"]}})
    assert captions.backward(both).count("No loss scale") == 1 and "of fp16 and fp16_autocast finite" in captions.backward(both)
    assert "In fp16 mlp.up_proj.weight of layer 1 would overflow first." in captions.headroom(over)
    assert "None of them exceeds the limit of fp16" in captions.headroom(found)
    assert '"overflow"' in captions.parameters(over) and '"overflow"' not in captions.inside_backward(found)
    rounded = found.request.model_copy(update={"pre_rounded": True})
    assert "same rounded weights" in captions.forward(found.model_copy(update={"request": rounded}))


def test_a_legend_draws_every_variant_as_its_figure_does() -> None:
    html = legend(f"v{index}" for index in range(24))
    for index, row in enumerate(re.findall(r"<li>(.*?)</li>", html)):
        style = marked(index)
        assert row.endswith(f"v{index}") and row.count(style["color"]) == 2
    assert "stroke" not in legend(["a"], lines=False)


def test_progress_lists_what_ran_and_what_runs() -> None:
    meter = VariantMeter()
    assert "Running bf16: layer 1" in VariantMeter().show(
        VariantProgress(done=1, total=4, unit="layers", note="bf16: layer 1", variant="bf16")
    )
    told = [("reference", 1, False), ("reference", 8, True), ("bf16", 8, True), ("<b>", 9, False)]
    for name, done, finished in told:
        shown = meter.show(VariantProgress(done=done, total=24, unit="layers", note=name, variant=name, finished=finished))
    assert shown == ""  # the first is still fresh
    listed = meter.found(Progress(done=9, total=24, unit="layers"))
    assert re.fullmatch(r"reference \S+ m?s bf16 \S+ m?s <b> running", text_of(listed))
    assert "<b>" not in listed
    assert VariantMeter().found(Progress(done=1, total=4, unit="bytes")) == ""


def test_text_from_outside_stays_text() -> None:
    hostile = hostile_precision_report()
    own = re.sub(r"<script>.*?</script>", "", document([precision_report(), hostile]), flags=re.DOTALL)
    for html in (
        headline(hostile),
        LARGEST.html(hostile),
        listed(HEADROOM, hostile, of_reference(hostile)),
        listed(SETTINGS, hostile),
        own,
    ):
        assert "<img" not in html and "\u202e" not in html
    assert "&lt;img" in own and "&lt;img" in headline(hostile)
    assert "\u202e" not in str(LARGEST.value(hostile)) and "x" * 1_000 not in own
    assert HOSTILE in hostile.summary  # plain text: escaped where it meets HTML
    assert not re.search(r"""(src|@import|url)\s*[=(]\s*["']?(https?:)?//""", own)
    archive = zipfile.ZipFile(BytesIO(tables_zip([hostile])))
    assert {f"{name}.csv" for name in ("summary", "variants", "tensors", "parameter_kinds", "headroom", "logprobs")} == set(
        archive.namelist()
    )


def test_the_page_taken_along_has_everything_of_every_report() -> None:
    page = document([precision_report(), overflowing()])
    assert page.count('data-figure="') == 5 + 7
    assert re.findall(r'<article id="(report-\d)">', page) == ["report-1", "report-2"]
    assert "<title>Rounding error: sample:tiny-bf16, sample:tiny-overflow</title>" in page
    assert page.count("<summary>Tensors</summary>") == 2


def test_what_it_ran_on_is_said_with_its_commit() -> None:
    found = of_model("org/name", precision_report())
    assert "@ 1f2e3d4" in text_of(headline(found))
    said = captions.inputs(found)
    assert said.startswith("Run on 2 sequences of 24 tokens of the built-in text.") and " ".join(found.inputs.preview.split()) in said
    inputs = found.inputs.model_copy(update={"source": "org/data", "commit": "a" * 40})
    assert "of org/data at aaaaaaaaaaaa." in captions.inputs(found.model_copy(update={"inputs": inputs}))


def test_the_methods_page_has_every_preset() -> None:
    listed = {row[0]: row[1] for row in rows_of(methods()) if len(row) == 2}
    assert {name: listed.get(name) for name in ABOUT} == ABOUT
