"""The page of a family: descendants and ancestors of a model, from stored results."""

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from analyzers.parents import ParentsReport
from components.library import Library
from components.parents import family_page
from components.server.routes import routes
from components.site import addresses
from tests.components.dtype_reports import COMMIT
from tests.parents.checkpoints import Folder, Tensors, merged, model, tuned

FIRST, SECOND = model(10, layers=2), model(11, layers=2)


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ParentsReport]:
    """Real reports, as of public repositories."""
    folder = Folder(tmp_path_factory.mktemp("models"))

    def of(name: str, child: Tensors, **candidates: Tensors) -> ParentsReport:
        report = folder.parents(child, *candidates.values())
        public = {f"{folder.folder}/c{number}": f"org/{ref}" for number, ref in enumerate(candidates)} | {f"{folder.folder}/x": name}
        text = report.model_dump_json()
        for path, ref in public.items():
            text = text.replace(f'"{path}"', f'"{ref}"').replace(path, ref)
        report = ParentsReport.model_validate_json(text)
        found = tuple(each.model_copy(update={"public": True, "commit": COMMIT}) for each in report.candidates)
        facts = report.checkpoint.model_copy(update={"public": True, "commit": COMMIT})
        return report.model_copy(update={"candidates": found, "checkpoint": facts})

    return {
        "tuned": of("org/tuned", tuned(FIRST, 0.01), first=FIRST, second=SECOND),
        "merge": of("org/merge", merged((0.3, 0.7), FIRST, SECOND), first=FIRST, second=SECOND),
        "other": of("org/other", model(12, layers=2), first=FIRST),
    }


@pytest.fixture
def filled(library: Library, reports: dict[str, ParentsReport]) -> Library:
    for number, report in enumerate(reports.values()):
        assert library.add_result(report, public=True, created=f"2026-11-2{number}T00:00:00.000000Z")
    return library


def test_descendants_ancestors_and_others(filled: Library, reports: dict[str, ParentsReport]) -> None:
    found = family_page.family_of(filled, "ORG/first")
    assert [(each.name, each.kind, each.weight, each.proven) for each in found.children] == [
        ("org/merge", "a merge", "0.300", True),
        ("org/tuned", "derived", "", True),
    ]
    assert found.children[0].result == addresses.stored(reports["merge"].id)
    assert [each.name for each in found.others] == ["org/other"] and found.parents == []
    assert [each.name for each in family_page.family_of(filled, "org/second").children] == ["org/merge"]
    merge = family_page.family_of(filled, "org/merge")
    assert [(each.name, each.weight) for each in merge.parents] == [("org/first", "0.300"), ("org/second", "0.700")]
    assert merge.children == []


def test_the_page(filled: Library) -> None:
    with TestClient(Starlette(routes=routes()), base_url="https://app.example") as client:
        assert 'href="../../../library/family/org/merge"' in client.get("/library/family/org/first").text
        assert "compare?model=org/nobody" in client.get("/library/family/org/nobody").text
        for bad in ("a/b/c", "%3Cimg%20src=x%3E", "org/name@main", "../etc", "sample:<b>"):
            answer = client.get(f"/library/family/{bad}")
            assert answer.status_code == 404 and "<img src=x" not in answer.text and "<b>" not in answer.text, bad


def test_hostile_names_are_shown_as_text(filled: Library, reports: dict[str, ParentsReport], monkeypatch: pytest.MonkeyPatch) -> None:
    row = (
        family_page.family_of(filled, "org/first")
        .children[0]
        ._replace(name="<img src=x onerror=alert(1)>", family='"><script>alert(1)</script>')
    )
    monkeypatch.setattr(family_page, "family_of", lambda *_: family_page.Family([row], [row], []))
    page = family_page.family_page(filled, "org/strange", "https://app.example/")
    assert "<img src=x" not in page and "<script>alert" not in page and "&lt;img src=x" in page
