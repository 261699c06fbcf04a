"""Addresses beside Gradio's, asked as a browser, a proxy and a crawler ask: badges, stored results, files."""

import asyncio
import io
import json
import re
import resource
import subprocess
import time
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import gradio
import pandas
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from analyzers import ANALYZERS
from analyzers.core import limits
from components.library import Identity, Library
from components.server.front_layer import exception_handlers, middleware
from components.server.routes import exports, routes
from components.site import stored_results
from components.site.identity import COOKIE
from tests.cases import few
from tests.components.conflict_reports import conflict_report
from tests.components.dtype_reports import HOSTILE, hostile_report, report

ID = "a" * 64
ANN = Identity.login("ann")
LINK = "https://example.org/paper"


async def _told(request: Request) -> PlainTextResponse:
    """How many bytes came."""
    return PlainTextResponse(str(len(await request.body())))


@cache
def no_pages() -> gradio.Blocks:
    """Made while an event loop runs, since elsewhere Gradio leaves one open, and once: it takes a tenth of a second."""

    async def make() -> gradio.Blocks:
        return gradio.Blocks()

    return asyncio.run(make())


@pytest.fixture
def client(library: Library) -> Iterator[TestClient]:
    """The addresses before an app that answers everything else, which has only the library's page."""
    more = [
        Route("/library", lambda request: HTMLResponse("the page"), methods=["GET", "POST"]),
        Route("/told", _told, methods=["POST"]),
    ]
    handlers: Any = exception_handlers()
    app = Starlette(routes=[*routes(), *more], middleware=middleware(no_pages()), exception_handlers=handlers)
    with TestClient(app) as opened:
        yield opened
    exports.close()


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.meta: dict[str, str] = {}
        self.attributes: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += [name for name, _ in attrs]
        found = dict(attrs)
        if tag == "meta" and (name := found.get("property") or found.get("name")):
            self.meta[name] = found.get("content") or ""


def test_nobody_uploads(client: TestClient) -> None:
    for path in ("/gradio_api/upload", "/gradio_api/upload/", "/upload", "/gradio_api/upload_progress?upload_id=x"):
        for answer in (client.post(path, files={"files": ("x.html", b"<script>")}), client.get(path)):
            assert (answer.status_code, answer.text) == (403, "This app takes no files.")


def test_nobody_sends_more_than_fits(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REQUEST_BYTES", 1000)

    def pieces(count: int) -> Iterator[bytes]:
        """Sent without saying how many."""
        for _ in range(count):
            sent.append(100)
            yield b"x" * 100

    for path in ("/told", "/library"):
        assert client.post(path, content=b"x" * 1000).text == ("1000" if path == "/told" else "the page")
        assert client.post(path, content=b"x" * 1001).status_code == 413
    sent: list[int] = []
    assert client.post("/told", content=pieces(10)).text == "1000"
    answer = client.post("/told", content=pieces(11))
    assert answer.status_code == 413 and "A request may have 8,000,000 bytes at most." in answer.text


def test_a_badge_comes_with_cache_headers_and_is_not_sent_twice(client: TestClient, library: Library) -> None:
    library.add_label("org/name", "bf16", LINK, ANN)
    answer = client.get("/badge/org/name.svg")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/svg+xml")
    assert "max-age" in answer.headers["cache-control"]
    assert ">bf16<" in answer.text
    again = client.get("/badge/ORG/name.svg?show=trained", headers={"If-None-Match": "*"})
    assert "passed through" not in again.text
    same = client.get("/badge/org/name.svg", headers={"If-None-Match": f'"x", W/{answer.headers["etag"]}'})
    assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", answer.headers["etag"])
    library.add_label("org/name", "fp16", LINK, ANN)
    assert client.get("/badge/org/name.svg").headers["etag"] != answer.headers["etag"]


@pytest.mark.parametrize("model", few(["%3Cscript%3E", "../../etc/passwd", "a/b/c", "%00", "x" * 3000, "a%2Fb%2Fc"], {0, 1, 3}))
def test_what_is_no_model_has_no_badge(client: TestClient, model: str) -> None:
    answer = client.get(f"/badge/{model}.svg")
    assert answer.status_code == 404
    assert "<script" not in answer.text


@pytest.mark.exhaustive
def test_a_badge_takes_no_longer_in_a_large_library(client: TestClient, library: Library) -> None:
    def fastest() -> float:
        taken = []
        for number in range(20):
            start = time.process_time()  # the app runs in a thread of this process
            assert client.get(f"/badge/org/name-{number}.svg").status_code == 200
            taken.append(time.process_time() - start)
        return min(taken)

    def label(first: int, end: int) -> None:
        for number in range(first, end):
            library.add_label(f"org/name-{number}", "bf16", LINK, Identity.login(f"user{number}"))

    label(0, 20)
    small = fastest()
    label(20, 600)
    assert fastest() < 4 * small


def test_a_stored_result_is_a_page_with_a_title_for_others_to_show(client: TestClient, library: Library) -> None:
    made = report("org/name", id=ID)
    library.add_result(made, public=True)
    answer = client.get(f"/result/{ID}")
    page = _Page(answer.text)
    assert answer.status_code == 200
    assert page.meta["og:title"] == "Precision passport: org/name"
    assert page.meta["og:description"].startswith("All 1,700,000 values tested of this fp32 checkpoint are bf16 values")
    assert page.meta["description"] == page.meta["og:description"]
    assert "Trained in" in answer.text
    assert "frame-ancestors *" in answer.headers["content-security-policy"]
    assert 'href="../?model=org%2Fname' in answer.text
    assert len(answer.content) < 200_000  # the script that draws is a file of its own, which stays in the cache
    script = client.get("/" + answer.text.split('<script src="../')[1].split('"')[0])
    assert "immutable" in script.headers["cache-control"]
    assert len(script.content) > 1_000_000
    alone = client.get(f"/result/{ID}?embed=1").text
    assert "<nav" not in alone and "<h1" not in alone and "Trained in" in alone


def test_the_json_is_what_was_stored_byte_for_byte(client: TestClient, library: Library) -> None:
    made = report("org/name", id=ID)
    library.add_result(made, public=True)
    answer = client.get(f"/result/{ID}.json")
    assert answer.content == made.model_dump_json().encode()
    assert answer.headers["access-control-allow-origin"] == "*"
    assert client.get(f"/result/{ID}.json", headers={"If-None-Match": answer.headers["etag"]}).status_code == 304
    for ending, begins in (("zip", b"PK"), ("html", b"<!doctype html>")):
        file = client.get(f"/result/{ID}.{ending}")
        assert file.content.startswith(begins) and "attachment" in file.headers["content-disposition"]


@pytest.mark.parametrize("identifier", [ID, "x", "..%2f..%2fetc", "A" * 64, "<script>", "0" * 63])
def test_what_is_not_stored_is_said(client: TestClient, identifier: str) -> None:
    answer = client.get(f"/result/{identifier}")
    assert answer.status_code == 404
    assert "<script>alert" not in answer.text
    assert {client.get(f"/result/{identifier}.{ending}").status_code for ending in ("json", "zip", "html")} == {404}


def test_a_report_that_cannot_be_drawn_has_its_json_only(client: TestClient, library: Library) -> None:
    forged = conflict_report(pairs=(), samples=4).model_copy(update={"id": ID, "samples": ()})  # whose rows name samples
    assert library.add_result(forged, public=True) is not None
    paths = [f"/result/{ID}{part}" for part in ("", "?embed=1", "?embed=small", ".png", ".zip", ".html")]
    answers = {path: client.get(path).status_code for path in (*paths, f"/card/{ID}.png")}
    assert set(answers.values()) <= {200, 404} and answers[f"/result/{ID}"] == 404, answers
    assert client.get(f"/result/{ID}.json").content == forged.model_dump_json().encode()


def test_text_from_outside_stays_text(client: TestClient, library: Library) -> None:
    hostile = hostile_report()
    checkpoint = report().checkpoint.model_copy(update={"ref": "org/name", "quantization": HOSTILE})
    made = hostile.model_copy(
        update={"id": ID, "checkpoint": checkpoint, "request": hostile.request.model_copy(update={"model": "org/name"})}
    )
    assert library.add_result(made, public=True) is not None
    library.add_label("org/name", "bf16", LINK, ANN, quote=f'"><script>alert(1)</script>{HOSTILE}')
    for query in ("", "?embed=1"):
        page = _Page(client.get(f"/result/{ID}{query}").text)
        assert "img" not in page.names
        assert not [name for name in page.attributes if name.startswith("on")]
        assert page.names.count("script") == 5  # two of the page, and the data of three figures


def test_the_library_is_there_as_files(client: TestClient, library: Library) -> None:
    library.add_label("org/name", "bf16", LINK, ANN, quote='=HYPERLINK("http://evil")')
    labels = pandas.read_parquet(io.BytesIO(client.get("/library/labels.parquet").content))
    assert list(labels[labels.contributor == "ann"].model) == ["org/name"]
    table = pandas.read_csv(io.BytesIO(client.get("/library/labels.csv").content))
    assert list(table[table.contributor == "ann"].evidence_quote) == ['\'=HYPERLINK("http://evil")']
    lines = client.get("/library/labels.jsonl").text.splitlines()
    assert len(lines) == len(labels) == len(table)
    assert json.loads(lines[0])["version"] == 1
    library.add_label("org/other", "fp16", LINK, ANN)
    assert len(client.get("/library/labels.jsonl").text.splitlines()) == len(lines) + 1
    for path in ("labels.exe", "secrets.csv", "../app.py", "labels."):
        assert client.get(f"/library/{path}").status_code == 404


@pytest.mark.parametrize("name", ["labels.csv", "labels.jsonl", "labels.parquet", "training.csv"])
def test_a_file_that_cannot_be_written_is_a_sentence(client: TestClient, library: Library, name: str) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, most))
    try:
        answer = client.get(f"/library/{name}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    assert (answer.status_code, answer.text.split(":")[0]) == (503, "The file cannot be written")
    assert client.get(f"/library/{name}").status_code == 200


@pytest.mark.parametrize(
    ("query", "anybody"),
    [("embed=1", True), ("model=a&embed=1", True), ("%65mbed=%31", True)]
    + [
        (query, False)
        for query in ("", "embed=0&embed=1", "embed=1&embed=0", "embed=1&embed=1", "embed=11", "embed=", "Embed=1", "&" * 9_000)
    ],
)
def test_only_a_page_that_the_script_makes_an_embed_may_be_framed(client: TestClient, query: str, anybody: bool) -> None:
    """embed=1 once, as page.js reads it, which leaves out the buttons that act with the visitor's login."""
    policy = client.get(f"/version?{query}").headers["content-security-policy"]
    assert policy.endswith(
        "frame-ancestors *" if anybody else "frame-ancestors 'self' https://huggingface.co https://*.huggingface.co https://hf.co"
    )


def test_a_browser_is_told_apart_and_the_page_that_writes_cannot_be_framed(client: TestClient) -> None:
    answer = client.get("/library")
    secret = answer.cookies[COOKIE]
    assert len(secret) > 20
    assert "HttpOnly" in answer.headers["set-cookie"]
    assert "SameSite=Lax" in answer.headers["set-cookie"]
    assert "frame-ancestors 'self'" in answer.headers["content-security-policy"]
    assert "set-cookie" not in client.get("/library").headers


def test_without_a_library_nothing_is_said_to_be_unknown_or_not_stored(client: TestClient) -> None:
    stored_results.set_library(None)
    for path in ("/badge/org/name.svg", f"/result/{ID}", f"/result/{ID}.json", "/library/labels.csv", "/org/org"):
        answer = client.get(path)
        assert (answer.status_code, "The library is not open" in answer.text) == (503, True), path


def test_scripts_and_styles_are_compressed_once_and_kept(client: TestClient) -> None:
    folder = Path(gradio.__file__).parent / "templates/frontend/assets"
    for suffix, kind in ((".js", "text/javascript"), (".css", "text/css"), (".woff2", "font/woff2")):
        path = max(folder.glob(f"*{suffix}"), key=lambda each: each.stat().st_size)
        for accepted in ("gzip", "identity"):
            answer = client.get(f"/assets/{path.name}", headers={"Accept-Encoding": accepted})
            assert answer.status_code == 200
            assert answer.content == path.read_bytes()
            assert answer.headers["Content-Type"].startswith(kind)
            assert "immutable" in answer.headers["Cache-Control"]
            assert answer.headers.get("Content-Encoding") == ("gzip" if accepted == "gzip" and suffix != ".woff2" else None)
    for name in ("nothing.js", "..%2findex.html", "%2e%2e/index.html", "a%00b.js", "x" * 5000):
        assert client.get(f"/assets/{name}").status_code == 404


def test_health_follows_the_library(client: TestClient) -> None:
    assert (client.get("/healthz").status_code, client.get("/healthz").text) == (200, "ok")
    stored_results.set_library(None)
    assert client.get("/healthz").status_code == 503


def test_version_names_the_commit_the_analyses_and_the_library(client: TestClient) -> None:
    said = client.get("/version").json()
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    assert said["commit"] == head.stdout.strip()
    assert said["analyses"]["dtype"] >= 1 and set(said["analyses"]) == set(ANALYZERS)
    assert said["library"]["restored"] is True and said["library"]["dataset"] == ""


@pytest.mark.parametrize("prefix", few(["", "/app"], {1}))
@pytest.mark.parametrize("path", ["/none", "/no/such/<img>", "/no/such/", "/no%2Fsuch", "/assets"])
def test_a_browser_at_an_unknown_address_gets_a_page_with_a_link_home_and_others_json(prefix: str, path: str) -> None:
    handlers: Any = exception_handlers()
    app = FastAPI(routes=[*routes()], middleware=middleware(no_pages()), exception_handlers=handlers)
    with TestClient(app, root_path=prefix) as client:
        answer = client.get(path, headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
        assert (answer.status_code, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
        assert "<h1>Page not found" in answer.text and "img>" not in answer.text
        for text, target in (("Go to the first page", "/"), ("Library", "/library")):
            link = re.search(f'<a href="([^"]*)">{text}</a>', answer.text)
            assert link is not None and urljoin(f"http://host{prefix}{path}", link[1]) == f"http://host{prefix}{target}"
        for accepted in ("*/*", "application/json"):
            other = client.get(path, headers={"Accept": accepted})
            assert other.status_code == 404 and other.json()["detail"].lower() == "not found"
        assert client.post(path, headers={"Accept": "text/html"}).headers["content-type"] == "application/json"
