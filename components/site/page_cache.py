"""Gradio's pages, rendered once: Gradio would copy and render the configuration of a page, up to 300 kB, for each visitor, in 10 to 40 ms.

A page depends on the address that the visitor used and on a deep link, and on nothing else of the request; only its preview for links to
it depends on the query.
"""

from collections import OrderedDict
from typing import Any

import gradio as gr
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from components.look.theme import EARLY_STYLE
from components.site import previews

# Pages times addresses: the host name in a request is its sender's choice.
_ENTRIES = 64
# Gradio derives the app's address from these.
_ADDRESS = ("host", "x-forwarded-host", "x-forwarded-proto")


class PageCache:
    """Answers for the pages of ``blocks`` from memory, once ``app`` has rendered them."""

    def __init__(self, app: ASGIApp, blocks: gr.Blocks) -> None:
        self._app = app
        self._blocks = blocks
        self._pages: OrderedDict[Any, tuple[bytes, bytes]] = OrderedDict()

    async def __call__(self, scope: Scope, path: str, receive: Receive, send: Send) -> None:
        """Answer a request for ``path``, which is the scope's without the prefix of a proxy."""
        known = path.removeprefix("/") in (page for page, _, _ in self._blocks.pages)
        if not known or scope["method"] != "GET" or b"deep_link" in scope["query_string"]:
            await self._app(scope, receive, send)
            return
        headers = Request(scope).headers
        key = scope["path"], scope["scheme"], scope.get("root_path"), *(headers.get(name) for name in _ADDRESS)
        if (page := self._pages.get(key)) is None:
            page = await self._rendered(scope, receive)
            if page is None:
                await self._app(scope, receive, send)
                return
            self._pages[key] = page
            while len(self._pages) > _ENTRIES:
                self._pages.popitem(last=False)
        self._pages.move_to_end(key)
        request = Request(scope)
        preview = await run_in_threadpool(previews.of_page, path.removeprefix("/"), request.url.query)
        head = (EARLY_STYLE + previews.head(preview, previews.origin_of(request))).encode()
        await Response(page[0] + head + page[1], media_type="text/html")(scope, receive, send)

    async def _rendered(self, scope: Scope, receive: Receive) -> tuple[bytes, bytes] | None:
        """The page as Gradio renders it, cut where the preview belongs; None if it does not."""
        body = bytearray()
        status = 0

        async def copied(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            body.extend(message.get("body", b""))

        await self._app({**scope, "headers": [header for header in scope["headers"] if header[0] != b"accept-encoding"]}, receive, copied)
        return previews.split(bytes(body)) if status == 200 else None
