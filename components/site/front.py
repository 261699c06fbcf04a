"""The layer in front of Gradio: limits on requests, checks of calls before Gradio sees them, headers of answers, errors as sentences."""

from collections.abc import Callable
from urllib.parse import parse_qs

import gradio as gr
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from analyzers import limits
from analyzers.errors import MantissaError
from components.api.answers import FROM_MCP, is_mcp
from components.api.calls import NOT_A_CALL, Refusal, check_call, check_stream, is_call
from components.running.jobs import sentence
from components.site.identity import COOKIE, new_secret

# Labels are added with a login: only the Hub may frame the page they are added on, or a click could be stolen.
_OWN_FRAMES = "frame-ancestors 'self' https://huggingface.co https://*.huggingface.co https://hf.co"
_OURS = ("/badge/", "/result/", "/library/")
# Under any prefix: Gradio would store what anybody sends, and answer with the path.
_UPLOADS = ("/upload", "/upload_progress")
_TOO_LONG = f"A request may have {limits.REQUEST_BYTES:,} bytes at most (MANTISSA_REQUEST_BYTES)."


def middleware(app: gr.Blocks) -> list[Middleware]:
    """For the server that Gradio makes of ``app``."""
    return [Middleware(Front, blocks=app)]


def exception_handlers() -> dict[type[Exception], Callable[[Request, Exception], Response]]:
    """For the same: FastAPI's own answer to a malformed body repeats it."""
    return {RequestValidationError: lambda request, error: _refused(Refusal(422, NOT_A_CALL))}


class Front:
    """ASGI middleware. On this app's own addresses an error is a sentence, a browser gets the secret that identifies it where there is no
    login, and the library's page stays out of other sites' frames. Nothing may be uploaded, and no body is longer than REQUEST_BYTES.
    """

    def __init__(self, app: ASGIApp, blocks: gr.Blocks) -> None:
        self._app = app
        self._blocks = blocks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"].removeprefix(scope.get("root_path", "")).rstrip("/")
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
            status = error.status_code if isinstance(error, HTTPException) else 503 if isinstance(error, MantissaError) else 500
            said = error.detail if isinstance(error, HTTPException) else sentence(error)
            await PlainTextResponse(said, status)(scope, receive, guarded)

    async def _answer(self, scope: Scope, path: str, receive: Receive, send: Send) -> None:
        length = dict(scope["headers"]).get(b"content-length", b"")
        if length.isdigit() and int(length) > limits.REQUEST_BYTES:
            raise HTTPException(413, _TOO_LONG)
        if path.endswith(_UPLOADS):
            raise HTTPException(403, "This app takes no files.")
        refusal = None
        if is_call(scope["method"], path):
            body = await _read(receive)
            refusal = check_call(self._blocks, path, body)
            receive = _replayed(body, receive)
        elif scope["method"] == "GET":
            sessions = parse_qs(scope["query_string"].decode("latin-1")).get("session_hash")
            refusal = check_stream(self._blocks, path, sessions[0] if sessions else None)
        elif is_mcp(path):
            scope = {**scope, "headers": [*scope["headers"], FROM_MCP]}
        if refusal is not None:
            await _refused(refusal)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _refused(refusal: Refusal) -> Response:
    return JSONResponse({"detail": refusal.sentence}, refusal.status)


def _add_headers(scope: Scope, path: str, start: Message) -> None:
    headers = MutableHeaders(scope=start)
    if path.startswith(_OURS):
        headers["X-Content-Type-Options"] = "nosniff"
    if path == "/library":
        headers["Content-Security-Policy"] = _OWN_FRAMES
        if COOKIE not in Request(scope).cookies:
            safe = "; Secure" if scope["scheme"] == "https" else ""
            cookie = f"{COOKIE}={new_secret()}; HttpOnly; SameSite=Lax; Path=/; Max-Age=31536000{safe}"
            headers.append("Set-Cookie", cookie)


def _bounded(receive: Receive) -> Receive:
    """``receive``, raising HTTPException once the body is longer than REQUEST_BYTES."""
    read = 0

    async def bounded() -> Message:
        nonlocal read
        message = await receive()
        read += len(message.get("body", b""))
        if read > limits.REQUEST_BYTES:
            raise HTTPException(413, _TOO_LONG)
        return message

    return bounded


async def _read(receive: Receive) -> bytes:
    """The whole body; what there is of it where the client disconnects."""
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return bytes(body)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """A ``receive`` that gives ``body`` first."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return messages.pop() if messages else await receive()

    return replayed
