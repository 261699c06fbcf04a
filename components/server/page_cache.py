"""Caches what Gradio makes of the app's configuration: its pages, and the descriptions that programs read before a call.

Gradio would copy and render the configuration, up to 1.3 MB, for each request, in 15 to 150 ms.

An answer depends on the host that the visitor used and on the parameters of the query that `_DESCRIPTIONS` lists; only a page's preview
for links to it depends on the rest. The sender chooses the host in a request, so answers are rendered for a placeholder host, which is
replaced in each response.
"""

import asyncio
from functools import lru_cache
from urllib.parse import urlencode

import gradio as gr
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from components.api.call_checks import API
from components.appearance.theme import EARLY_STYLE
from components.server.compression import compress, compressed_answer
from components.site import link_previews

_HOST = b"mantissa.invalid"
# Parameters that a description depends on: a page's address, and whether endpoints without a name are described too.
_PAGE, _ALL = "page", "all_endpoints"
_INFO = f"{API}info"
_DESCRIPTIONS = {"/config": (_PAGE,), _INFO: (_PAGE, _ALL), f"{API}openapi.json": (_ALL,)}
# Calls with values by name. Gradio looks them up in _INFO, and keeps the host of whoever needs it first for everybody.
_NAMED_CALLS = f"{API}call/v2/"
_COMPRESSED = 16  # Most descriptions that are kept compressed, for one host each.


class PageCache:
    """Answers requests for the pages of ``blocks`` and for its descriptions from memory, once ``app`` has rendered them."""

    def __init__(self, app: ASGIApp, blocks: gr.Blocks) -> None:
        self._app = app
        self._pages = {f"/{page}": page for page, _, _ in blocks.pages}
        self._rendered: dict[tuple[object, ...], tuple[bytes, bytes]] = {}
        self._rendering = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name: str = scope["path"].removeprefix(scope.get("root_path", ""))
        if name not in self._pages and name.removesuffix("/") in _DESCRIPTIONS:
            name = name.removesuffix("/")
        request = Request(scope)
        parts = None
        if scope["method"] in ("GET", "HEAD") and (name in self._pages or name in _DESCRIPTIONS):
            parts = await self._render(request, name, self._query(name, request))
        elif name.startswith(_NAMED_CALLS):
            await self._render(request, _INFO, "")
        if parts is None:
            await self._app(scope, receive, send)
            return
        answer = await (self._page(name, parts, request) if name in self._pages else _description(parts[0], request))
        if scope["method"] == "HEAD":
            answer.body = b""  # its headers remain
        await answer(scope, receive, send)

    def _query(self, name: str, request: Request) -> str:
        """Return the part of a query that the answer depends on, the same for all queries with the same answer."""
        parameters, known = _DESCRIPTIONS.get(name, ()), {}
        if _PAGE in parameters and f"/{request.query_params.get(_PAGE)}" in self._pages:
            known[_PAGE] = request.query_params[_PAGE]
        if _ALL in parameters and request.query_params.get(_ALL):
            known[_ALL] = "true"
        return urlencode(known)

    async def _render(self, request: Request, name: str, query: str) -> tuple[bytes, bytes] | None:
        """Return Gradio's answer at the address ``name``, a page split where its preview belongs; None on failure."""
        scope = request.scope
        secure = request.headers.get("x-forwarded-proto", "").split(",")[0].strip() == "https"
        key = name, query, scope["scheme"], scope.get("root_path"), secure
        async with self._rendering:
            if key not in self._rendered:
                headers = [(b"host", _HOST), *([(b"x-forwarded-proto", b"https")] if secure else [])]
                asked = {"method": "GET", "path": name, "raw_path": name.encode(), "query_string": query.encode(), "headers": headers}
                status, body = await _answer(self._app, {**scope, **asked})
                if status != 200:
                    return None
                self._rendered[key] = link_previews.split(body) if name in self._pages else (body, b"")
            return self._rendered[key]

    async def _page(self, name: str, parts: tuple[bytes, bytes], request: Request) -> Response:
        preview = await run_in_threadpool(link_previews.of_page, self._pages[name], request.url.query)
        head = (EARLY_STYLE + link_previews.head(preview, link_previews.origin_of(request))).encode()
        before, after = (part.replace(_HOST, _host(request)) for part in parts)
        return Response(before + head + after, media_type="text/html")


async def _answer(app: ASGIApp, scope: Scope) -> tuple[int, bytes]:
    """Return the status and the body with which ``app`` answers a request without a body."""
    status, body = 0, bytearray()

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status
        status = message.get("status", status)
        body.extend(message.get("body", b""))

    await app(scope, receive, send)
    return status, bytes(body)


async def _description(content: bytes, request: Request) -> Response:
    return compressed_answer(request, await run_in_threadpool(_compressed, content, _host(request)), "application/json")


@lru_cache(_COMPRESSED)
def _compressed(content: bytes, host: bytes) -> bytes:
    return compress(content.replace(_HOST, host))


def _host(request: Request) -> bytes:
    return link_previews.host_of(request).encode("latin-1")
