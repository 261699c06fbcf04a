"""Parents on the page: the form, its link and command, the result with its figures, and what the library keeps of it."""

import math
from pathlib import Path

import pytest

from analyzers.checkpoints import Access
from analyzers.core.errors import InvalidRequest
from analyzers.parents import ParentsReport, ParentsRequest, analyze
from analyzers.parents.facts import beyond_chance
from components.forms.form import as_read, command, permalink
from components.library.storable_reports import storable_result
from components.parents.form import filled, request
from components.site import stored_results
from tests.parents.checkpoints import Folder, model

NAMES = ("sample:tiny-bf16", "sample:tiny-fp32")


@pytest.fixture(scope="module")
def derived() -> ParentsReport:
    *_, report = analyze(ParentsRequest(model="sample:tiny-tuned", candidates=NAMES), Access())
    assert isinstance(report, ParentsReport)
    return report


def test_the_form_makes_the_request() -> None:
    asked = request({"model": " sample:tiny-tuned ", "candidates": "sample:tiny-bf16, sample:tiny-fp32", "budget": "1MB"})
    assert asked == ParentsRequest(model="sample:tiny-tuned", candidates=NAMES, budget=1_000_000)
    many = " ".join(f"org/m{number}" for number in range(100))
    for name, candidates in (("org/x", "org/a org/a"), ("org/x", many), ("org/x", "org/x"), ("org/x org/y", "")):
        with pytest.raises(InvalidRequest):
            request({"model": name, "candidates": candidates})


def test_link_and_command_ask_again(derived: ParentsReport) -> None:
    query = [tuple(pair.split("=", 1)) for pair in permalink(as_read(derived)).removeprefix("?").replace("%3A", ":").split("&")]
    assert request(filled([(key, value) for key, value in query])) == derived.request
    asked = filled([("model", "org/x"), ("candidates", "org/a org/b"), ("candidate", "org/c")])
    assert asked["candidates"] == "org/a org/b org/c"
    assert command(as_read(derived, found=True)) == "mantissa parents sample:tiny-tuned sample:tiny-bf16 sample:tiny-fp32"


def test_only_far_more_exact_values_than_chance_are_called_proof() -> None:
    assert beyond_chance(0.66, 0.001)
    assert not any(beyond_chance(*shares) for shares in ((0.01, 0.001), (0.3, 0.1), (0.0, math.nan)))


def test_the_library_keeps_it_under_a_key_that_finds_it(derived: ParentsReport, tmp_path: Path) -> None:
    result = storable_result(
        derived.model_dump_json(), key=stored_results.key_of(derived), created="2026-11-24T12:00:00.000000Z", contributor=""
    )
    assert result is not None and result.models == ("sample:tiny-tuned", *NAMES)
    other = analyze(ParentsRequest(model="sample:tiny-tuned", candidates=NAMES[::-1]), Access())
    assert stored_results.key_of(list(other)[-1]) == stored_results.key_of(derived) != ""
    private = Folder(tmp_path).parents(model(1), model(2))
    assert storable_result(private.model_dump_json(), key="", created="2026-11-24T12:00:00.000000Z", contributor="") is None
