"""What a result is shared as: previews of links, the card, the short link, the small frame, the text for a discussion; and compression."""

import gzip
import json
import re
import shlex
from typing import Any
from urllib.parse import quote

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from analyzers import ANALYZERS
from analyzers.core.report import Report
from components.forms.form import as_read
from components.library import Library
from components.results.discussion import discussion
from components.server import front_layer
from components.site import addresses, link_previews
from tests.components.dtype_reports import COMMIT, HOSTILE, hostile_report, report
from tests.components.sparsity_reports import facts, sparsity_report
from tests.components.test_routes import ID, client

__all__ = ["client"]
OTHER = "0" * 40


def add(library: Library, made: Report, identifier: str, created: str = "") -> Report:
    """Store a report whose repositories are known to be public."""
    library.is_available(("org/name", "org/base", "org/tuned"))
    made = made.model_copy(update={"id": identifier})
    assert library.add_result(made, public=True, created=created) is not None
    return made


def comparison(**changes: Any) -> Report:
    return sparsity_report(analysis_version=ANALYZERS["sparsity"].analysis_version(), **changes)


def title(path: str, query: str) -> str:
    preview = link_previews.of_page(path, query)
    assert (preview.picture == f"card/{ID}.png") == (preview.title != link_previews.of_page(path, "").title)
    return preview.title


def test_the_link_of_a_badge_shows_the_newest_result_of_its_model(library: Library) -> None:
    assert title("", "model=org%2Fname").startswith("What precision")
    add(library, report("org/name"), "1" * 64, "2026-11-01T00:00:00.000000Z")
    made = add(library, report("org/name"), ID, "2026-11-02T00:00:00.000000Z")
    for query in (
        "model=org%2Fname",
        "model=ORG/Name",
        "model=org/name&mode=quick&utm_source=x",
        f"model=org/name&revision={COMMIT}",
    ):
        assert title("", query) == "Precision passport: org/name", query
    assert link_previews.of_page("", "model=org/name").description == made.headline
    for query in (
        f"model=org/name&revision={OTHER}",  # another commit
        "model=org/name@main",  # a branch, which may have moved on
        "model=org/name&mode=exact",  # a sample was read
        "model=org/name&include=mlp",  # a part
        "model=org/name&seed=7",
        "model=org/name&model=org/tuned",
        "model=org/nam",
        "model=" + "org/name," * 3,
    ):
        assert title("", query).startswith("What precision"), query
    assert title("check", "model=org/name") == title("check", "")


def test_a_result_on_a_part_or_of_an_older_analysis_does_not_stand_for_the_model(library: Library) -> None:
    made = report("org/name")
    part = made.model_copy(update={"request": made.request.model_copy(update={"include": "mlp"})})
    add(library, part, ID)
    add(library, report("org/name", analysis_version=1), "1" * 64)
    assert title("", "model=org/name").startswith("What precision")
    assert title("", "model=org/name&include=mlp") == "Precision passport: org/name"


def test_a_comparison_has_a_card_of_its_own(client: TestClient, library: Library) -> None:
    add(library, comparison(), ID)
    assert title("sparsity", "base=org/base&tuned=org/tuned") == "Fine-tune diff: org/base, org/tuned"
    for query in ("base=org/tuned&tuned=org/base", "base=org/base", "base=org/base&tuned=org/name", "base=org/base&tuned=org/base"):
        assert title("sparsity", query) == title("sparsity", ""), query
    assert client.get(f"/card/{ID}.png").headers["content-type"] == "image/png"


def test_an_intermediate_checkpoint_is_no_base(library: Library) -> None:
    between = comparison(tuned=(facts("org/name"), facts("org/tuned")))
    add(library, between, ID)
    assert title("sparsity", "base=org/base&tuned=org/tuned") != title("sparsity", "")
    assert title("sparsity", "base=org/name&tuned=org/tuned") == title("sparsity", "")


@pytest.mark.parametrize("path", ["", "compare", "sparsity", "parents", "check", "conflict", "precision", "exit"])
def test_a_hostile_query_shows_the_page(library: Library, path: str) -> None:
    add(library, report("org/name"), ID)
    page = link_previews.of_page(path, "")
    for value in (
        HOSTILE,
        "\x00",
        "a/b/c",
        "../../etc/passwd",
        "x" * 3000,
        "sample:none",
        "' OR 1=1 --",
        "org/name@" + "a" * 500,
        "\ud83d",
    ):
        given = quote(value, errors="replace")
        for query in (f"model={given}", f"base={given}&tuned={given}", f"model=org/name&candidate={given}&mode={given}"):
            assert link_previews.of_page(path, query) == page, query
    for query in ("model=" * 200, "&" * 2000, "model=org/name&" * 200, "=", "%", "model", "model=&model="):
        assert link_previews.of_page(path, query) == page, query


def test_a_page_is_not_held_up_by_a_hub_that_does_not_answer(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    add(library, report("org/name"), ID)
    answered = threading.Event()
    monkeypatch.setattr(library, "is_available", lambda models: answered.wait(60))
    try:
        assert title("", "model=org/name").startswith("What precision")  # which is before the Hub answers
    finally:
        answered.set()
    monkeypatch.setattr(library, "is_available", lambda models: False)
    assert title("", "model=org/name").startswith("What precision")


def test_a_short_link_leads_to_the_result_and_an_unknown_one_to_a_sentence(client: TestClient, library: Library) -> None:
    add(library, report("org/name"), ID)
    code = addresses.short(ID).removeprefix("r/")
    assert len(code) == 10
    for same in (code, code.upper()):
        answer = client.get(f"/r/{same}", follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (307, f"../result/{ID}")
    page = client.get(f"/r/{code}").text
    assert f'<a href="../r/{code}">r/{code}</a>' in page
    for unknown in ("0000000000", "x", code[:9], "%3Cscript%3E", "%00", "0" * 3000):
        missing = client.get(f"/r/{unknown}")
        assert missing.status_code == 404 and "There is no stored result" in missing.text


@pytest.mark.parametrize("made", [report, hostile_report, comparison])
def test_a_small_frame_has_the_answer_without_figures_and_scripts(client: TestClient, library: Library, made: object) -> None:
    assert callable(made)
    given: Report = made()
    if made is hostile_report:
        given = given.model_copy(update={"checkpoint": report("org/name").checkpoint})
    add(library, given, ID)
    answer = client.get(f"/result/{ID}?embed=small", headers={"Accept-Encoding": "identity"})
    assert answer.status_code == 200 and len(answer.content) < 100_000
    assert "<script" not in answer.text and "<nav" not in answer.text and "<img" not in answer.text and "m-answer" in answer.text
    assert f'href="../result/{ID}"' in answer.text and "frame-ancestors *" in answer.headers["content-security-policy"]


@pytest.mark.parametrize("made", [report, hostile_report, comparison])
def test_the_text_of_a_discussion_has_link_and_command_and_no_markup_from_outside(made: object) -> None:
    assert callable(made)
    given: Report = made()
    layout = addresses.layout(given.analyzer)
    text = discussion(layout, given, "https://example.org/r/0123456789", "mantissa dtype 'a\nb' --include=`x`")
    assert "(https://example.org/r/0123456789)" in text and re.search(r"^    mantissa dtype 'a.*b' --include=`x`$", text, re.MULTILINE)
    outside = re.sub(r"^    .*$", "", text, flags=re.MULTILINE)
    assert "<img" not in outside.replace(r"\<", "") and not re.search(r"(?<!\\)[<`](?!span)", outside.replace("</span>", ""))
    assert shlex.split(layout.command(as_read(given)))[:2] == ["mantissa", given.analyzer]


def test_text_is_compressed_and_pictures_and_streams_are_not(client: TestClient, library: Library) -> None:
    made = add(library, report("org/name"), ID)
    for path, encoding in (
        (f"/result/{ID}", "gzip"),
        (f"/result/{ID}.json", "gzip"),
        ("/methods", "gzip"),
        ("/library/labels.csv", "gzip"),
        (f"/card/{ID}.png", None),
        (f"/result/{ID}.zip", None),
        ("/library/labels.parquet", None),
    ):
        answer = client.get(path)
        assert answer.headers.get("content-encoding") == encoding, path
        assert client.get(path, headers={"Accept-Encoding": "identity"}).content == answer.content
    assert json.loads(client.get(f"/result/{ID}.json").content)["id"] == made.id
    page = client.get(f"/result/{ID}", headers={"Accept-Encoding": "identity"}).content
    assert int(client.get(f"/result/{ID}").headers["content-length"]) < len(page) / 3 and len(gzip.compress(page)) < len(page)


def test_events_arrive_as_they_are_sent() -> None:
    async def events(request: Request) -> StreamingResponse:
        async def made() -> object:
            for number in range(3):
                yield f"data: {number} {'x' * 5_000}\n\n"

        return StreamingResponse(made(), media_type="text/event-stream")  # type: ignore[arg-type]

    compressing: Middleware = front_layer.middleware(None)[0]  # type: ignore[arg-type]
    app = Starlette(routes=[Route("/", events)], middleware=[compressing])
    with TestClient(app) as opened, opened.stream("GET", "/", headers={"Accept-Encoding": "gzip"}) as answer:
        assert "content-encoding" not in answer.headers
        assert [chunk[:7] for chunk in answer.iter_raw()] == [b"data: 0", b"data: 1", b"data: 2"]
