"""The result of a run: its figures and tables, its progress, and that text from outside stays text."""

import re

from analyzers.core.request import Progress
from analyzers.precision_variants import ABOUT, PrecisionReport, VariantProgress
from components.precision.methods import methods
from components.precision.page import VariantMeter
from components.results.answer import table
from components.results.html_documents import document
from tests.components.html_text import rows_of, text_of
from tests.components.precision_reports import hostile_precision_report, overflowing, precision_report


def test_a_document_has_every_figure_and_the_rows_of_every_table() -> None:
    page = document([precision_report(), overflowing()])
    assert page.count('data-figure="') == 5 + 7
    rows = {tuple(row[:2]) for row in rows_of(page)}
    for name, variant in overflowing().variants.items():
        assert rows >= {(name, tensor.name) for tensor in variant.tensors}


def test_tensors_sort_by_exact_values() -> None:
    found = precision_report()
    sortable = table(PrecisionReport, "tensors").table.value(found)
    rows = [(name, row) for name, variant in found.variants.items() for row in variant.tensors]
    assert len(sortable["data"]) == len(rows)
    for line, (name, row) in zip(sortable["data"], rows, strict=True):
        exact = dict(zip(sortable["headers"], line, strict=True))
        assert (exact["Variant"], exact["Tensor"], exact["Error"], exact["Bias"]) == (name, row.name, row.rms_rel, row.bias)


def test_text_from_outside_stays_text() -> None:
    own = re.sub(r"<script>.*?</script>", "", document([precision_report(), hostile_precision_report()]), flags=re.DOTALL)
    assert "<img" not in own and "\u202e" not in own and "&lt;img" in own and "x" * 1_000 not in own
    assert not re.search(r"""(src|@import|url)\s*[=(]\s*["']?(https?:)?//""", own)


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


def test_the_methods_page_has_every_preset() -> None:
    listed = {row[0]: row[1] for row in rows_of(methods()) if len(row) == 2}
    assert {name: listed.get(name) for name in ABOUT} == ABOUT
