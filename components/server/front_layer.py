"""Stands in front of Gradio: limits on requests, checks of calls before Gradio sees them, response headers, errors as sentences."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from urllib.parse import parse_qsl
from weakref import WeakValueDictionary

import gradio as gr
from fastapi.exception_handlers import http_exception_handler
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders, QueryParams
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import DEFAULT_EXCLUDED_CONTENT_TYPES, GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from analyzers.core import limits
from analyzers.core.errors import MantissaError
from components.api import call_checks
from components.api.call_checks import API, NOT_A_CALL, TOO_MANY_VALUES, Refusal
from components.running.jobs import sentence
from components.running.queue_limits import UnreadResults, reading
from components.running.resource_exhaustion import is_exhausted
from components.server.compression import LEVEL
from components.server.page_cache import PageCache
from components.site.identity import COOKIE, client_of, new_secret, with_client
from components.site.library_files import TYPES
from components.site.result_page import not_found_page

BODY_SECONDS = 15  # A request's body must arrive within this time, plus a second for each 100 kB.
_LONG_REQUESTS = 8  # Requests of more than 64 kB that are read at once; a quarter of them from one address.
# Gradio's pages contain their configuration as a script and compile the scripts of components: both must be allowed. Nothing is loaded from
# or sent to other sites.
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "font-src 'self' data:; worker-src 'self' blob:; object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors "
)
# Labels are added with a login: only the Hub may frame pages other than embeds, or another site could hijack a click.
_OWN_FRAMES = "'self' https://huggingface.co https://*.huggingface.co https://hf.co"
_FIELDS = 1_000  # most fields in the query of a page that others may frame
_ANY_FRAME = "*"
_BODY_BYTES_PER_SECOND = 100_000
# Streams of events must arrive at once, and these are compressed already.
_NOT_COMPRESSED = (*DEFAULT_EXCLUDED_CONTENT_TYPES, TYPES["parquet"], "application/octet-stream")
# A longer body waits for its turn; meanwhile uvicorn keeps this much of it.
_LONG_BODY = 1 << 16
# Refused under any prefix: Gradio would store any upload, and reply with its path.
_UPLOADS = ("/upload", "/upload_progress")
_RELOADS = f"{API}dev/reload"  # looks 20 times a second whether the code has changed, for as long as a client is connected
_TOO_SLOW = f"The body of a request must arrive within {BODY_SECONDS} seconds."
_TOO_LONG = f"A request may have {limits.REQUEST_BYTES:,} bytes at most."
_TOO_MANY_LONG = f"At most {_LONG_REQUESTS} long requests are read at once: try again in a moment."


def middleware(app: gr.Blocks) -> list[Middleware]:
    """Return the middleware for the server that Gradio makes of ``app``: `Front`, and compression of everything that is text."""
    return [Middleware(GZipMiddleware, compresslevel=LEVEL, exclude_content_types=_NOT_COMPRESSED), Middleware(Front, blocks=app)]


def exception_handlers() -> dict[type[Exception], Callable[[Request, Exception], Response | Awaitable[Response]]]:
    """Return exception handlers for the same server.

    FastAPI would repeat a malformed body, and answer browsers in JSON at unknown addresses.
    """
    return {RequestValidationError: lambda request, error: _refused(Refusal(422, NOT_A_CALL)), HTTPException: _http_error}


class Front:
    """ASGI middleware that bounds requests, adds response headers, and answers errors on this app's own addresses with a sentence.

    A browser gets a cookie with the secret that identifies it without a login; only embeds may be framed by other sites. Uploads are
    refused, no body may be longer than REQUEST_BYTES or take longer than BODY_SECONDS, and only LONG_REQUESTS long bodies are in memory at
    once: others are not read until then.
    """

    def __init__(self, app: ASGIApp, blocks: gr.Blocks) -> None:
        self._app = app
        self._pages = PageCache(app, blocks)
        self._unread = UnreadResults(blocks)
        self._blocks = blocks
        self._turns = asyncio.Semaphore(_LONG_REQUESTS)
        self._turns_of: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"].removeprefix(scope.get("root_path", "")).rstrip("/")
        scope = with_client(scope)
        begun = False

        async def guarded(message: Message) -> None:
            nonlocal begun
            begun = True
            if message["type"] == "http.response.start":
                _add_headers(scope, path, message)
            await send(message)

        try:
            await self._answer(scope, path, _bounded(receive), guarded)
        except Exception as error:
            if begun:
                raise
            busy = isinstance(error, MantissaError) or is_exhausted(error)
            status = error.status_code if isinstance(error, HTTPException) else 503 if busy else 500
            said = error.detail if isinstance(error, HTTPException) else sentence(error)
            await PlainTextResponse(said, status)(scope, receive, guarded)

    async def _answer(self, scope: Scope, path: str, receive: Receive, send: Send) -> None:
        length = int(dict(scope["headers"]).get(b"content-length", 0))
        if length > limits.REQUEST_BYTES:
            raise HTTPException(413, _TOO_LONG)
        if path.endswith(_UPLOADS):
            raise HTTPException(403, "This app takes no files.")
        if path == _RELOADS:
            raise HTTPException(404, "This app does not reload its code.")
        query = QueryParams(scope["query_string"] if path.startswith(API) else b"")
        found: str | Refusal | None = call_checks.check_address(path, query)
        if found is None and scope["method"] == "GET":
            found = call_checks.stream(self._blocks, path, query.get("session_hash"))
        elif found is None and scope["method"] not in ("HEAD", "OPTIONS"):
            async with self._turn(scope) if length > _LONG_BODY else nullcontext():
                checked = await run_in_threadpool(self._checked, scope, path, await _read(receive))
            if isinstance(checked, Refusal):
                found = checked
            else:
                receive = _replayed(checked, receive)
                self._unread.drop()
        if isinstance(found, Refusal):
            await _refused(found)(scope, receive, send)
            return
        if found is None:
            await self._pages(scope, receive, send)
            return
        with reading(found):
            await self._app(scope, receive, send)

    @asynccontextmanager
    async def _turn(self, scope: Scope) -> AsyncIterator[None]:
        """Wait for the turn to read a long body: LONG_REQUESTS are read at once, a quarter of them from one address."""
        address = (scope.get("client") or ("",))[0]
        own = self._turns_of.setdefault(address, asyncio.Semaphore(max(1, _LONG_REQUESTS // 4)))
        try:
            async with asyncio.timeout(BODY_SECONDS) as waiting, own, self._turns:
                waiting.reschedule(None)
                yield
        except TimeoutError:
            raise HTTPException(503, _TOO_MANY_LONG) from None

    def _checked(self, scope: Scope, path: str, body: bytes) -> Refusal | bytes:
        """Return the body to pass on, or the refusal. Runs outside the event loop, since a long body takes a while."""
        if not call_checks.is_bounded(body):
            return Refusal(422, TOO_MANY_VALUES)
        if call_checks.is_call(scope["method"], path):
            return call_checks.check_call(self._blocks, path, body, client_of(Request(scope)))
        return call_checks.check_message(path, body) or body


async def _http_error(request: Request, error: Exception) -> Response:
    """Answer an unknown address with a page for a browser, else with JSON."""
    assert isinstance(error, HTTPException)  # registered only for this class
    if error.status_code != 404 or request.method not in ("GET", "HEAD") or "text/html" not in request.headers.get("accept", ""):
        return await http_exception_handler(request, error)
    # The path home is relative, so that it works under any proxy prefix. raw_path, because in the decoded path %2F is a slash too.
    path = request.scope["raw_path"].decode("latin-1").removeprefix(request.scope.get("root_path", ""))
    return HTMLResponse(not_found_page("../" * (path.count("/") - 1) or "./"), 404, error.headers)


def _refused(refusal: Refusal) -> Response:
    return JSONResponse({"detail": refusal.sentence}, refusal.status)


def _add_headers(scope: Scope, path: str, start: Message) -> None:
    headers = MutableHeaders(scope=start)
    headers["X-Content-Type-Options"] = "nosniff"
    headers["Referrer-Policy"] = "same-origin"
    if start["status"] in (408, 413, 503):  # must not wait for the rest of the body
        headers["Connection"] = "close"
    if "Content-Security-Policy" not in headers:
        embedded = path != "/library" and _is_embed(scope["query_string"])
        headers["Content-Security-Policy"] = _POLICY + (_ANY_FRAME if embedded else _OWN_FRAMES)
    if headers.get("content-type", "").startswith("text/html") and COOKIE not in Request(scope).cookies:
        safe = "; Secure" if scope["scheme"] == "https" else ""
        cookie = f"{COOKIE}={new_secret()}; HttpOnly; SameSite=Lax; Path=/; Max-Age=31536000{safe}"
        headers.append("Set-Cookie", cookie)


def _is_embed(query: bytes) -> bool:
    """Return whether a page asked for by ``query`` leaves out all that acts with a login, by the same rule as page.js."""
    try:
        fields = parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=_FIELDS)
    except ValueError:
        return False
    return [value for name, value in fields if name == "embed"] == ["1"]


def _bounded(receive: Receive) -> Receive:
    """Wrap ``receive`` to raise HTTPException once the body is longer than REQUEST_BYTES or takes longer than BODY_SECONDS."""
    began: float | None = None
    read = 0
    complete = False

    async def bounded() -> Message:
        nonlocal began, read, complete
        began = began or time.monotonic()
        try:
            async with asyncio.timeout(None if complete else BODY_SECONDS + read / _BODY_BYTES_PER_SECOND - time.monotonic() + began):
                message = await receive()
        except TimeoutError:
            raise HTTPException(408, _TOO_SLOW) from None
        read += len(message.get("body", b""))
        complete = not message.get("more_body", False)
        if read > limits.REQUEST_BYTES:
            raise HTTPException(413, _TOO_LONG)
        return message

    return bounded


async def _read(receive: Receive) -> bytes:
    """Return the whole body, or the part received before the client disconnects."""
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return bytes(body)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a ``receive`` that returns ``body`` first."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return messages.pop() if messages else await receive()

    return replayed
