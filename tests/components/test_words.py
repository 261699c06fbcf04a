"""Terminal, page, library and badge answer in the same words, which are declared once."""

import math

import pytest

from analyzers.dtype_detection import DtypeReport, DtypeRequest, analyze
from analyzers.parents.facts import beyond_chance
from components.dtype.result import RESULT
from components.library import Library
from components.library_page import list_tables
from components.site.badges import parts
from tests.components.html_text import text_of


def _passport(sample: str) -> DtypeReport:
    *_, report = analyze(DtypeRequest(model=f"sample:{sample}"))
    assert isinstance(report, DtypeReport)
    return report


@pytest.mark.parametrize(
    ("sample", "through", "fp16"),
    [
        ("tiny-bf16-as-fp32", "bf16 -> fp32", "weights fit"),
        ("tiny-bf16", "nothing narrower", "weights fit"),
        ("tiny-overflow", "nothing narrower", "weights overflow"),
    ],
)
def test_every_place_answers_in_the_same_words(library: Library, sample: str, through: str, fp16: str) -> None:
    report = _passport(sample)
    library.add_result(report, public=True)
    rows = {line.split("  ")[0]: line for line in report.text().splitlines()}
    assert through in rows["Passed through"] and fp16 in rows["Safe in fp16"]
    page = text_of(RESULT.headline(report, False)).lower()
    stored = through.split(" ->")[0]
    assert f"passed through {through.replace('->', '→')}" in page and f"safe in fp16? {fp16}" in page
    badge = {part.name: part.value for part in parts(library.model(report.checkpoint.ref))}
    assert badge["passed through"] == stored and badge["fp16"] == fp16
    row = library.model(report.checkpoint.ref)
    assert row is not None and (list_tables.passed(row), list_tables.fp16(row)) == (stored, fp16)


def test_the_source_of_a_passport_is_named() -> None:
    report = _passport("tiny-bf16")
    assert "(source: built-in sample)" in report.text() and "Source: built-in sample" in text_of(RESULT.headline(report, False))
    inferred = report.training.model_copy(update={"basis": "classifier", "source": "stas00/ml-ways", "verdict": "undecided"})
    other = report.model_copy(update={"training": inferred})
    assert "(rule: stas00/ml-ways)" in other.text()
    assert '<a href="https://github.com/stas00/ml-ways"' in RESULT.headline(other, False)
    assert ">(rule: stas00/ml-ways)</a>" in RESULT.headline(other, False)


def test_only_far_more_exact_values_than_chance_are_called_proof() -> None:
    assert (
        beyond_chance(0.66, 0.001) and not beyond_chance(0.01, 0.001) and not beyond_chance(0.3, 0.1) and not beyond_chance(0.0, math.nan)
    )
