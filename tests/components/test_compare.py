"""The page Compare: its result, the old addresses that lead to it, and what is stored of it."""

from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from analyzers.compare import CompareReport, CompareRequest, analyze
from analyzers.core.errors import InvalidRequest
from analyzers.language_models.samples import sample_folder
from components.api.endpoints import in_short
from components.compare.form import filled, request
from components.compare.result import RESULT
from components.forms.form import as_read
from components.library import Library, Query
from components.running import jobs
from components.server.routes import routes
from components.site import stored_results
from tests.components.html_text import text_of
from tests.hub import LocalHub


def _compared(*models: str) -> CompareReport:
    *_, report = analyze(CompareRequest(models=tuple(f"sample:{model}" for model in models)))
    assert isinstance(report, CompareReport)
    return report


@pytest.fixture(scope="module")
def tune() -> CompareReport:
    return _compared("tiny-bf16", "tiny-step-1", "tiny-tuned")


def test_the_page_and_the_command_are_those_of_the_report(tune: CompareReport) -> None:
    assert tune.answer.text in text_of(RESULT.headline(tune, True))
    assert RESULT.command(as_read(tune)) == "mantissa compare sample:tiny-bf16 sample:tiny-step-1 sample:tiny-tuned"
    facts = in_short(tune)
    assert (
        facts["headline"] == tune.headline and facts["facts"]["relation_kind"] == "derived" and facts["page"].startswith("compare?model=")
    )


@pytest.mark.parametrize(
    ("old", "models", "options"),
    [
        ("sparsity", (), ""),
        ("parents", (), ""),
        (
            "sparsity?base=org/a&tuned=org/b&tuned=org/c@v1&mode=exact&eta=0.01&embed=1",
            ("org/a", "org/b", "org/c@v1"),
            "mode=exact&eta=0.01&embed=1",
        ),
        ("parents?model=org/x&candidate=org/a&candidate=org/b&include=mlp%7Cq", ("org/a", "org/b", "org/x"), "include=mlp%7Cq"),
        ("parents?model=org/x&revision=v2", ("org/x@v2",), ""),
    ],
)
def test_old_addresses_lead_to_the_page_with_the_same_inputs(old: str, models: tuple[str, ...], options: str) -> None:
    with TestClient(Starlette(routes=routes())) as client:
        answer = client.get(f"/{old}", follow_redirects=False)
    address, _, query = answer.headers["Location"].partition("?")
    assert answer.status_code == 307 and address == "./compare"
    pairs = [tuple(pair.split("=")) for pair in query.replace("%2F", "/").replace("%40", "@").split("&") if pair]
    assert [value for key, value in pairs if key == "model"] == [*models]
    assert "&".join("=".join(pair) for pair in pairs if pair[0] != "model") == options
    assert not models or request(filled([(key, value.replace("%7C", "|")) for key, value in pairs])).models == models


@pytest.mark.parametrize("form", [{}, {"models": ["a/b", "a/b"]}, {"models": ["a/b "] * 65}, {"models": ["x" * 100_000]}])
def test_bad_fields_are_refused(form: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        request(form)


def test_a_comparison_is_stored_with_the_reports_in_it(library: Library, hub: LocalHub) -> None:
    for name in ("bf16", "tuned"):
        files: dict[str, bytes | Path | Any] = {path.name: path for path in sample_folder(f"tiny-{name}").iterdir()}
        hub.add(f"org/{name}", files)
    asked = CompareRequest(models=("org/bf16", "org/tuned"))
    *_, report = jobs.job(asked)
    assert isinstance(report, CompareReport) and report.request == asked
    assert {row.result.analyzer for row in library.results(Query()).rows} == {"compare", "parents", "sparsity"}
    found = stored_results.find(asked)
    assert found is not None and found[0].model_dump() == report.model_dump()
    assert stored_results.find(CompareRequest(models=("org/tuned", "org/bf16"))) is None
    with TestClient(Starlette(routes=routes())) as client:
        assert report.answer.text in text_of(client.get(f"/result/{report.id}").text)
        assert client.get(f"/result/{report.parents.id}").status_code == 200
        assert client.get(f"/card/{report.id}.png").status_code == client.get("/card/parents.png").status_code == 200


def test_what_is_private_leaves_no_comparison(library: Library, hub: LocalHub) -> None:
    files: dict[str, bytes | Path | Any] = {path.name: path for path in sample_folder("tiny-bf16").iterdir()}
    hub.add("org/bf16", files)
    report = _compared("tiny-bf16", "tiny-tuned")
    row = report.parents.candidates[0].model_copy(update={"public": False})
    hidden = report.model_copy(update={"parents": report.parents.model_copy(update={"candidates": (row,)})})
    library.add_result(hidden, public=True)
    assert not library.results(Query()).rows
