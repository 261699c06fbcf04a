"""Caches Gradio's pages: Gradio would copy and render a page's configuration, up to 300 kB, for each visitor, in 10 to 40 ms.

A page depends on the address that the visitor used and on a deep link, and on nothing else of the request; only its preview for links to it
depends on the query. The sender chooses the host in a request, so pages are rendered for a placeholder host, which is replaced in each
response.
"""

from typing import Any

import gradio as gr
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from components.appearance.theme import EARLY_STYLE
from components.site import link_previews

_HOST = b"mantissa.invalid"


class PageCache:
    """Answers requests for the pages of ``blocks`` from memory, once ``app`` has rendered them."""

    def __init__(self, app: ASGIApp, blocks: gr.Blocks) -> None:
        self._app = app
        self._blocks = blocks
        self._pages: dict[Any, tuple[bytes, bytes]] = {}

    async def __call__(self, scope: Scope, path: str, receive: Receive, send: Send) -> None:
        """Answer a request for ``path``, which is the scope's path without a proxy's prefix."""
        known = path.removeprefix("/") in (page for page, _, _ in self._blocks.pages)
        if not known or scope["method"] != "GET" or b"deep_link" in scope["query_string"]:
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        secure = request.headers.get("x-forwarded-proto") == "https"
        key = scope["path"], scope["scheme"], scope.get("root_path"), secure
        if key not in self._pages:
            page = await self._rendered(scope, receive, secure)
            if page is None:
                await self._app(scope, receive, send)
                return
            self._pages[key] = page
        preview = await run_in_threadpool(link_previews.of_page, path.removeprefix("/"), request.url.query)
        head = (EARLY_STYLE + link_previews.head(preview, link_previews.origin_of(request))).encode()
        before, after = (part.replace(_HOST, link_previews.host_of(request).encode("latin-1")) for part in self._pages[key])
        await Response(before + head + after, media_type="text/html")(scope, receive, send)

    async def _rendered(self, scope: Scope, receive: Receive, secure: bool) -> tuple[bytes, bytes] | None:
        """Render the page with Gradio and split it where the preview belongs; None on failure. secure: whether a proxy says HTTPS."""
        body = bytearray()
        status = 0

        async def copied(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            body.extend(message.get("body", b""))

        headers = [(b"host", _HOST), *([(b"x-forwarded-proto", b"https")] if secure else [])]
        await self._app({**scope, "headers": headers}, receive, copied)
        return link_previews.split(bytes(body)) if status == 200 else None
