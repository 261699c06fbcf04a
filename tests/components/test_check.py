"""Check on the page: the form, its link and command, the result, and what the library keeps of it."""

from pathlib import Path

import pytest

from analyzers.check import CheckReport, CheckRequest, analyze
from analyzers.checkpoints import Access
from analyzers.core.errors import InvalidRequest, LimitExceeded
from components.check.form import filled, request
from components.check.result import copy_offer
from components.forms.form import as_read, command, permalink
from components.library.storable_reports import storable_result
from components.site import addresses, stored_results

WIDE = CheckRequest(model="sample:tiny-bf16-as-fp32")
TUNED = CheckRequest(model="sample:tiny-tuned", base="sample:tiny-bf16")


def checked(request: CheckRequest) -> CheckReport:
    *_, report = analyze(request)
    assert isinstance(report, CheckReport)
    return report


@pytest.fixture(scope="module")
def wide() -> CheckReport:
    return checked(WIDE)


@pytest.fixture(scope="module")
def tuned() -> CheckReport:
    return checked(TUNED)


def test_the_form_makes_the_request() -> None:
    assert request({"model": " sample:tiny-tuned ", "base": "sample:tiny-bf16"}) == TUNED
    assert request({"model": "org/x"}) == CheckRequest(model="org/x")
    for wrong in ({}, {"model": "a/b c/d"}, {"model": "a/b", "base": "c/d e/f"}, {"model": "org/x", "base": "org/x"}):
        with pytest.raises(InvalidRequest):
            request(wrong)


def test_link_and_command_ask_again(wide: CheckReport, tuned: CheckReport) -> None:
    for report in (wide, tuned):
        query = [tuple(pair.split("=", 1)) for pair in permalink(as_read(report)).removeprefix("?").replace("%3A", ":").split("&")]
        assert request(filled([(key, value) for key, value in query])) == report.request
        assert addresses.as_requested(report.request) == addresses.recompute(report)
    assert command(as_read(wide)) == "mantissa check sample:tiny-bf16-as-fp32"
    assert command(as_read(tuned)) == "mantissa check sample:tiny-tuned --base=sample:tiny-bf16"


def test_a_smaller_copy_is_offered_where_it_loses_nothing(wide: CheckReport, tuned: CheckReport) -> None:
    on_hub = {"checkpoint": wide.checkpoint.model_copy(update={"ref": "org/wide"})}
    offer = copy_offer(wide.model_copy(update=on_hub))
    assert offer is not None and offer.after == wide.checkpoint.bytes // 2 and "38 tensors" in offer.said
    assert copy_offer(wide) is None, "a sample has no repository"
    assert copy_offer(tuned.model_copy(update=on_hub)) is None, "it is stored in bf16"


def test_the_page_reads_no_more_than_its_limit() -> None:
    with pytest.raises(LimitExceeded, match=r"Use the command line\."):
        list(analyze(TUNED, Access(), largest=1_000))


def test_the_library_keeps_it_under_a_key_that_finds_it(wide: CheckReport, tuned: CheckReport, tmp_path: Path) -> None:
    for report, models in ((wide, (WIDE.model,)), (tuned, (TUNED.model, TUNED.base))):
        key = stored_results.key_of(report)
        result = storable_result(report.model_dump_json(), key=key, created="2026-11-24T12:00:00.000000Z", contributor="")
        assert key and result is not None and result.models == models
    assert stored_results.key_of(wide) != stored_results.key_of(tuned)
