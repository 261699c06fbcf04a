"""Below full coverage every sentence about the whole says how far it reaches, and text of checkpoints is text."""

import re
from html import unescape
from typing import Any

import pytest

from analyzers import check, dtype_detection, parents, update_sparsity
from analyzers.check import CheckReport
from analyzers.core.coverage import NotRead
from analyzers.core.report import Report
from analyzers.dtype_detection import DtypeReport
from analyzers.parents import ParentsReport
from analyzers.update_sparsity import SparsityReport
from components.results.coverage_tab import accounts
from components.results.html_documents import document
from components.site import addresses, link_previews, share_card
from tests.components.coverage_reports import coverage, covering, hostile_coverage
from tests.components.dtype_reports import HOSTILE
from tests.components.html_text import text_of

SAME = "sample:tiny-bf16-as-fp32"


def _last(items: Any) -> Any:
    *_, report = items
    return report


@pytest.fixture(scope="module")
def passport() -> DtypeReport:
    report: DtypeReport = _last(dtype_detection.analyze(dtype_detection.DtypeRequest(model=SAME)))
    return report


@pytest.fixture(scope="module")
def difference() -> SparsityReport:
    request = update_sparsity.SparsityRequest(base="sample:tiny-bf16", tuned=("sample:tiny-tuned",))
    report: SparsityReport = _last(update_sparsity.analyze(request))
    return report


@pytest.fixture(scope="module")
def copied() -> ParentsReport:
    request = parents.ParentsRequest(model=SAME, candidates=("sample:tiny-bf16", "sample:tiny-fp32"))
    report: ParentsReport = _last(parents.analyze(request))
    return report


@pytest.fixture(scope="module")
def clean() -> CheckReport:
    report: CheckReport = _last(check.analyze(check.CheckRequest(model="sample:tiny-fp32")))
    return report


@pytest.fixture(scope="module")
def two(passport: DtypeReport, difference: SparsityReport) -> dict[str, Report]:
    """A report of each kind, of which a quarter is covered."""
    return {
        "dtype": covering(passport, 0.25),
        "sparsity": covering(difference, 0.25, 1.0),
    }


TWO = ("dtype", "sparsity")
# What needs the whole.
WHOLE = re.compile(
    r"holds only|loses nothing|should lose nothing|half the memory|the weights fit|[Nn]othing (was )?(trained|wrong)|Use either|"
    r"holds the same weights|The same weights as|Nothing found in \d|Nothing needs|Read all of it"
)


@pytest.mark.parametrize("name", TWO)
def test_below_full_coverage_every_answer_says_its_reach(name: str, two: dict[str, Report]) -> None:
    report = two[name]
    layout, reach = addresses.layout(name), report.suffix()
    assert reach.startswith("Covers 25% of the weights") and "experts (8 tensors, no counterpart)" in reach
    assert report.headline.endswith(reach) and report.short_reach() == "25% covered" and not report.whole and report.covered_share == 0.25
    step = report.advice
    said = [report.headline, step.text, layout.summary(report), report.summary]
    said += [text_of(layout.headline(report, links)) for links in (True, False)]
    said += [report.text(), unescape(document([report])), link_previews.of_report(report).description]
    for each in said[:1] + said[2:]:
        assert "25% of the weights" in each
    for each in said[:-2]:
        assert not WHOLE.search(each), each
    assert layout.headline(report, True).count("25% of the weights") == 1


@pytest.mark.parametrize("name", TWO)
def test_at_full_coverage_and_without_an_account_nothing_changes(name: str, two: dict[str, Report]) -> None:
    without = two[name].model_copy(update={"coverage": ()})
    shares = [1.0] * len(getattr(two[name], "coverage", ()))
    for report in (without, covering(without, *shares)):
        assert report.whole and report.suffix() == report.short_reach() == ""
        assert "m-reach" not in addresses.layout(name).headline(report, True)
        assert report.headline == without.headline and report.advice == without.advice
        assert share_card.of_report(report) == share_card.of_report(without)
    assert share_card.of_report(two[name]) != share_card.of_report(without)
    assert not {"coverage", "covered_share"} & set(without.tables()["summary"].dropna(axis=1).columns)


def test_a_file_that_was_not_read_is_enough_unless_it_is_another_copy(passport: DtypeReport) -> None:
    other = NotRead(path="unet/model.safetensors", code="outside")
    files = (other, other.model_copy(update={"path": "b"}), NotRead(path="c", code="format"))
    partial = passport.model_copy(update={"coverage": (coverage(SAME, 1.0, "read", files_not_read=files),)})
    assert partial.short_reach() == "partly covered"
    assert partial.headline.endswith("Covers 100% of the weights in the files read; left out: 3 files not read.")
    assert "unet/model.safetensors not part of what was read" in text_of(accounts(partial))
    copy = other.model_copy(update={"code": "repeats"})
    same = passport.model_copy(update={"coverage": (coverage(SAME, 1.0, "read", files_not_read=(copy,)),)})
    assert same.whole and "repeats what was read, by its name" in text_of(accounts(same))


def test_candidates_that_are_no_parents_do_not_matter(copied: ParentsReport) -> None:
    assert copied.verdict == "same-weights"
    report = covering(copied, 1.0, 1.0, 0.1)
    assert report.whole and report.suffix() == ""


def test_a_check_against_a_base_lists_each_side_once() -> None:
    report: CheckReport = _last(check.analyze(check.CheckRequest(model="sample:tiny-tuned", base="sample:tiny-bf16")))
    sides = ["sample:tiny-tuned", "sample:tiny-bf16"]
    assert [each.ref for each in report.coverage] == list(report.tables()["coverage"].checkpoint.unique()) == sides
    partly = coverage("org/model", 0.9, "read").compared_as(coverage("org/model", 1.0))
    assert not partly.whole and partly.suffix() == "Covers 90% of the weights; left out: see coverage."


def test_text_of_checkpoints_is_text(two: dict[str, Report]) -> None:
    for name, report in two.items():
        hostile = report.model_copy(update={"coverage": (hostile_coverage(),)})
        page = document([hostile])
        assert "<img" not in page and HOSTILE in unescape(page) and "<img" not in addresses.layout(name).headline(hostile, True)
