"""Parents on the page: the form, its link and command, the result with its figures, and what the library keeps of it."""

from pathlib import Path

import pytest

from analyzers.checkpoints import Access
from analyzers.core.errors import InvalidRequest
from analyzers.parents import ParentsReport, ParentsRequest, analyze
from components.forms.form import as_read, command, permalink
from components.library.storable_reports import storable_result
from components.parents.form import filled, request
from components.parents.result import RESULT
from components.site import stored_results
from tests.parents.checkpoints import Folder, merged, model, stacked

NAMES = ("sample:tiny-bf16", "sample:tiny-fp32")


@pytest.fixture(scope="module")
def derived() -> ParentsReport:
    *_, report = analyze(ParentsRequest(model="sample:tiny-tuned", candidates=NAMES), Access())
    assert isinstance(report, ParentsReport)
    return report


def test_the_form_makes_the_request() -> None:
    asked = request({"model": " sample:tiny-tuned ", "candidates": "sample:tiny-bf16, sample:tiny-fp32", "budget": "1MB"})
    assert asked == ParentsRequest(model="sample:tiny-tuned", candidates=NAMES, budget=1_000_000)
    with pytest.raises(InvalidRequest, match="named 2 times as a candidate"):
        request({"model": "org/x", "candidates": "org/a org/a"})
    many = " ".join(f"org/m{number}" for number in range(100))
    with pytest.raises(InvalidRequest, match=r"At most 64 candidates are compared, not 100"):
        request({"model": "org/x", "candidates": many})
    with pytest.raises(InvalidRequest, match="the model itself"):
        request({"model": "org/x", "candidates": "org/x"})
    with pytest.raises(InvalidRequest, match="one model"):
        request({"model": "org/x org/y"})


def test_link_and_command_ask_again(derived: ParentsReport) -> None:
    query = [tuple(pair.split("=", 1)) for pair in permalink(as_read(derived)).removeprefix("?").replace("%3A", ":").split("&")]
    assert request(filled([(key, value) for key, value in query])) == derived.request
    asked = filled([("model", "org/x"), ("candidates", "org/a org/b"), ("candidate", "org/c")])
    assert asked["candidates"] == "org/a org/b org/c"
    assert command(as_read(derived, found=True)) == "mantissa parents sample:tiny-tuned sample:tiny-bf16 sample:tiny-fp32"


def test_a_document_shows_evidence_weights_and_candidates(derived: ParentsReport, tmp_path: Path) -> None:
    page = RESULT.document([derived]).alone()
    assert all(each.text.split("%")[0] in page for each in derived.evidence)
    assert "Equal in bf16" in page and RESULT.summary(derived) == derived.headline
    folder = Folder(tmp_path)
    first, second = model(1), model(2)
    for child in (merged((0.3, 0.7), first, second), stacked((first, 0, 3), (second, 1, 4)), model(3)):
        report = folder.parents(child, first, second)
        drawn = {plot.label: plot.draw(report) for plot in RESULT.plots(report)}
        ancestry, layers = drawn["Ancestry"], drawn["Weights per layer"]
        assert ("Layers and their parents" in drawn) == bool(report.layer_map)
        lines = [trace for trace in ancestry.data if trace.mode == "lines"]
        assert len(lines) == len(report.parents) and {trace.line.dash for trace in lines} <= {"solid"}
        assert len(layers.data) == 2 and RESULT.document([report]).alone()


def test_the_library_keeps_it_under_a_key_that_finds_it(derived: ParentsReport, tmp_path: Path) -> None:
    result = storable_result(
        derived.model_dump_json(), key=stored_results.key_of(derived), created="2026-11-24T12:00:00.000000Z", contributor=""
    )
    assert result is not None and result.models == ("sample:tiny-tuned", *NAMES)
    other = analyze(ParentsRequest(model="sample:tiny-tuned", candidates=NAMES[::-1]), Access())
    assert stored_results.key_of(list(other)[-1]) == stored_results.key_of(derived) != ""
    private = Folder(tmp_path).parents(model(1), model(2))
    assert storable_result(private.model_dump_json(), key="", created="2026-11-24T12:00:00.000000Z", contributor="") is None
