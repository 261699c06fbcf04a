"""Pages that are rendered once for all visitors."""

import asyncio
from types import SimpleNamespace
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from components.server.page_cache import PageCache


def test_a_page_is_rendered_once_whatever_host_is_asked_for() -> None:
    rendered: list[str] = []

    async def gradio(scope: Scope, receive: Receive, send: Send) -> None:
        host = Request(scope).headers["host"]
        rendered.append(host)
        await asyncio.sleep(0.01)
        page = f'<meta charset="utf-8" /><title>x</title><script>root = "{Request(scope).url.scheme}://{host}"</script>'
        await HTMLResponse(page)(scope, receive, send)

    blocks: Any = SimpleNamespace(pages=[("", "", True)])
    cache = PageCache(gradio, blocks)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await cache(scope, scope["path"].rstrip("/"), receive, send)

    client = TestClient(app)
    for number in range(100):
        host = f"10.0.0.{number}:7860"
        answer = client.get("/", headers={"Host": host}).text
        assert f'root = "http://{host}"' in answer and answer.count("10.0.0.") == answer.count(host) == 3, answer
    assert len(rendered) == 1
