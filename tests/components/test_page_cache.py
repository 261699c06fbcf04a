"""Pages and descriptions that are rendered once for all visitors."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from components.server.page_cache import PageCache

DESCRIPTIONS = ("/config", "/gradio_api/info", "/gradio_api/openapi.json")


class Rendered(list[tuple[str, str]]):
    """The addresses that were rendered, each with its host, by an app with two pages and three descriptions, as Gradio's are."""

    async def page(self, request: Request) -> Response:
        await asyncio.sleep(0.01)
        return HTMLResponse(f'<meta charset="utf-8" /><title>x</title><script>root = "{self._root(request)}"</script>')

    async def description(self, request: Request) -> Response:
        await asyncio.sleep(0.01)
        return JSONResponse({"root": self._root(request), "query": request.url.query, "text": "x" * 1000})

    def _root(self, request: Request) -> str:
        self.append((request.url.path, request.url.query))
        scheme = "https" if request.headers.get("x-forwarded-proto") == "https" else request.url.scheme
        return f"{scheme}://{request.headers['host']}"


@pytest.fixture
def rendered() -> Rendered:
    """Return an empty list of what is rendered."""
    return Rendered()


@pytest.fixture
def client(rendered: Rendered) -> TestClient:
    """Return a client of the cache."""

    async def called(request: Request) -> Response:
        return Response(await request.body())

    pages = [
        Route("/", rendered.page),
        Route("/library", rendered.page),
        Route("/library/", lambda request: RedirectResponse("/library", 301)),
    ]
    described = [Route(path, rendered.description) for path in DESCRIPTIONS]
    app = Starlette(routes=[*pages, *described, Route("/gradio_api/call/v2/{name}", called, methods=["POST"])])
    blocks: Any = SimpleNamespace(pages=[("", "", True), ("library", "", True)])
    return TestClient(PageCache(app, blocks), follow_redirects=False)


def test_a_page_is_rendered_once_whatever_host_is_asked_for(client: TestClient, rendered: Rendered) -> None:
    for number in range(100):
        host = f"10.0.0.{number}:7860"
        answer = client.get("/", headers={"Host": host}).text
        assert f'root = "http://{host}"' in answer and answer.count("10.0.0.") == answer.count(host) == 3, answer
    assert rendered == [("/", "")]


@pytest.mark.parametrize("path", DESCRIPTIONS)
def test_a_description_is_rendered_once_for_each_answer(client: TestClient, rendered: Rendered, path: str) -> None:
    queries = ["", "page=library", "page=", "page=x", "deep_link=x", "x=1", "x=2&page=x&page=library", "all_endpoints=1", "all_endpoints=2"]
    for number, query in enumerate(queries * 2):
        answer = client.get(f"{path}?{query}", headers={"Host": f"10.0.0.{number}"})
        assert answer.json()["root"] == f"http://10.0.0.{number}" and answer.headers["content-encoding"] == "gzip"
    pages = {"", "page=library", "page="} if path != "/gradio_api/openapi.json" else {""}
    everything = {"all_endpoints=true"} if path != "/config" else set()
    assert len(rendered) == len(set(rendered)) and {query for _, query in rendered} == pages | everything


@pytest.mark.parametrize("query", ["page=library", "deep_link=x", "all_endpoints=1", "__theme=dark", "view=api"])
def test_no_query_changes_a_page_for_others(client: TestClient, rendered: Rendered, query: str) -> None:
    assert client.get(f"/?{query}").text.replace(f"?{query}", "") == client.get("/").text
    assert rendered == [("/", "")]


@pytest.mark.parametrize("path", ["/", "/library", *DESCRIPTIONS])
def test_head_is_answered_as_get_without_the_body(client: TestClient, rendered: Rendered, path: str) -> None:
    head, got = client.head(path), client.get(path)
    assert (head.status_code, dict(head.headers), head.content) == (200, dict(got.headers), b"") and got.content
    assert rendered == [(path, "")]


def test_a_client_without_gzip_gets_the_same_description(client: TestClient) -> None:
    plain = client.get("/config", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers and plain.json() == client.get("/config/").json()


def test_a_description_behind_a_proxy_has_the_scheme_that_the_visitor_used(client: TestClient, rendered: Rendered) -> None:
    for forwarded, scheme in {"https": "https", "https, http": "https", "http": "http", "": "http"}.items():
        assert client.get("/config", headers={"X-Forwarded-Proto": forwarded}).json()["root"] == f"{scheme}://testserver"
    assert len(rendered) == 2


def test_the_first_call_by_name_does_not_choose_the_host_of_the_description(client: TestClient, rendered: Rendered) -> None:
    call = {"model": "org/name"}
    assert client.post("/gradio_api/call/v2/consensus", json=call, headers={"Host": "10.6.6.6"}).json() == call
    assert rendered == [("/gradio_api/info", "")]
    assert "10.6.6.6" not in json.dumps(client.get("/gradio_api/info").json()) and len(rendered) == 1


def test_the_address_of_a_page_with_a_slash_is_redirected(client: TestClient) -> None:
    assert client.get("/library/").headers["location"] == "/library"
