"""One layer in front of everything: who may be asked for, how large a request is, response headers, and errors as sentences."""

import ipaddress
import json
import os
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from analyzers.core import limits
from analyzers.core.errors import MantissaError
from analyzers.core.untrusted_json import InvalidJson, parse_json
from components.errors import is_exhausted, sentence
from components.identity import space_hosts

REQUEST_VALUES = 100_000  # Most lists, objects, texts and commas in a request, since all are held in memory.
# Most characters of an identifier that a client chooses, such as a session's: Gradio keeps some as long as it runs. Its own have 32.
IDENTIFIER_LENGTH = 64
_API = "/gradio_api/"
# Their addresses contain paths of files, whose parts are longer than identifiers.
_FILES = (f"{_API}file=", f"{_API}file/", f"{_API}proxy=")
_IDENTIFIERS = {"session_hash", "event_id", "trigger_id", "upload_id", "id", "requestId", "progressToken"}
# Gradio would store any upload and answer with its path, look for changed code for as long as a client is connected, and describe the
# whole app again for a link of its own kind.
_REFUSED = {
    "/upload": "This app takes no files.",
    "/upload_progress": "This app takes no files.",
    "/dev/reload": "This app does not reload its code.",
}
_HOST = re.compile(r"(?:\[([^]]*)\]|([^:]*))(?::\d*)?")
# Gradio takes its own address from these headers, and would store it in a page for everybody.
_ADDRESSES = (b"x-gradio-server", b"x-forwarded-host")
# Gradio's pages contain their configuration as a script and compile the scripts of components: both must be allowed. Nothing is loaded from
# or sent to other sites. Labels are added with a login: only the Hub may frame pages.
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; "
    "font-src 'self' data:; worker-src 'self' blob:; object-src 'none'; base-uri 'self'; form-action 'self'; "
    "frame-ancestors 'self' https://huggingface.co https://*.huggingface.co https://hf.co"
)
_OTHER_HOST = "This app does not serve this host name; its operator can add it to MANTISSA_HOSTS."
_TOO_LONG = f"A request may have {limits.REQUEST_BYTES:,} bytes at most, and states its length."
_TOO_MANY = f"A request is JSON in UTF-8, with at most {REQUEST_VALUES:,} values in {limits.JSON_DEPTH} levels."
_NOT_AN_IDENTIFIER = (
    f"An identifier, such as session_hash or event_id, is a text or whole number of {IDENTIFIER_LENGTH} characters at most."
)


class Refused(HTTPException):
    """A request that is not passed on."""


class Security:
    """ASGI middleware. Uploads are refused, a body is read whole and bounded before it is passed on, and errors are sentences.

    not_found: the page for a browser at an unknown address, where Gradio answers in JSON.
    """

    def __init__(self, app: ASGIApp, not_found: Callable[[Request], Response]) -> None:
        self._app, self._not_found = app, not_found

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = missing = False

        async def guarded(message: Message) -> None:
            nonlocal begun, missing
            begun = True
            if missing:
                return
            if message["type"] == "http.response.start":
                missing = message["status"] == 404 and _wants_page(scope) and b"json" in dict(message["headers"]).get(b"content-type", b"")
                if missing:
                    await self._not_found(Request(scope))(scope, receive, _with_headers(send))
                    return
                _add_headers(message)
            await send(message)

        try:
            checked, body = await _checked(scope, receive)
            await self._app(checked, receive if body is None else _replayed(body, receive), guarded)
        except Exception as error:
            if begun:
                raise
            answer: Response
            if isinstance(error, HTTPException):
                answer = JSONResponse({"detail": error.detail}, error.status_code, {"Connection": "close"})
            else:
                answer = PlainTextResponse(sentence(error), 503 if isinstance(error, MantissaError) or is_exhausted(error) else 500)
            await answer(scope, receive, guarded)


async def _checked(scope: Scope, receive: Receive) -> tuple[Scope, bytes | None]:
    """Return the scope to pass on, and the body, None for a request without one. Raises Refused."""
    headers, method = Headers(scope=scope), scope["method"]
    if not (is_ours(headers.get("host", "")) or ("host" not in headers and scope["http_version"] == "1.0")):
        raise Refused(421, _OTHER_HOST)
    path = scope["path"].removeprefix(scope.get("root_path", "")).rstrip("/")
    if refusal := next((said for ending, said in _REFUSED.items() if path.endswith(ending)), None):
        raise Refused(403, refusal)
    kept = [(name, value) for name, value in scope["headers"] if name not in _ADDRESSES or (name == _ADDRESSES[1] and _all_ours(value))]
    query = _query(scope["query_string"], path)
    passed = {**scope, "headers": kept, "query_string": query}
    if method in ("GET", "HEAD", "OPTIONS"):
        return passed, None
    length = headers.get("content-length", "")
    if "transfer-encoding" in headers or not length.isdecimal() or int(length) > limits.REQUEST_BYTES:
        raise Refused(413, _TOO_LONG)
    return passed, bounded(path, await _read(receive))


def _query(query: bytes, path: str) -> bytes:
    """Return a query without what makes Gradio describe its app again. Raises Refused for an identifier that is too long."""
    parts = path.split("/") if path.startswith(_API) and not path.startswith(_FILES) else []
    try:
        pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=1_000)
    except ValueError:
        raise Refused(422, _TOO_MANY) from None
    named = [value for name, value in pairs if name in _IDENTIFIERS] if path.startswith(_API) else []
    if not all(map(_is_identifier, (*parts, *named))):
        raise Refused(422, _NOT_AN_IDENTIFIER)
    return b"" if any(name == "deep_link" for name, _ in pairs) else query


def bounded(path: str, body: bytes) -> bytes:
    """Return a body of bounded depth, whose identifiers are short. Raises Refused."""
    if not path.startswith(_API) or not body:
        return body
    try:
        message = parse_json(body, values=REQUEST_VALUES)
    except InvalidJson:
        raise Refused(422, _TOO_MANY) from None
    if not isinstance(message, dict):
        raise Refused(422, _TOO_MANY)
    params = message.get("params")
    holders: tuple[Any, ...] = (message, params, params.get("_meta") if isinstance(params, dict) else None)
    if not all(_is_identifier(each.get(name)) for each in holders if isinstance(each, dict) for name in _IDENTIFIERS):
        raise Refused(422, _NOT_AN_IDENTIFIER)
    return json.dumps(message).encode()


def is_ours(host: str) -> bool:
    """Return whether a Host header names this app: an IP address, localhost, a Space's name, or a name listed by the operator.

    No page of another name can then send requests here, whatever its name resolves to; no other site serves its pages at an IP address.
    """
    parts = _HOST.fullmatch(host.strip().lower())
    name = (parts[1] or parts[2] if parts else "").removesuffix(".")
    listed = [*os.environ.get("MANTISSA_HOSTS", "").split(","), os.environ.get("GRADIO_SERVER_NAME", ""), *space_hosts()]
    if name and name in ("localhost", *(each.strip().lower() for each in listed)):
        return True
    if space_hosts() and name.endswith(".hf.space"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _all_ours(hosts: bytes) -> bool:
    return all(is_ours(host) for host in hosts.decode("latin-1").split(","))


def _is_identifier(value: Any) -> bool:
    return value is None or (type(value) in (str, int) and len(str(value)) <= IDENTIFIER_LENGTH)


async def _read(receive: Receive) -> bytes:
    """Return the whole body, or what came before the client left. Raises Refused beyond the limit."""
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > limits.REQUEST_BYTES:
            raise Refused(413, _TOO_LONG)
        if not message.get("more_body", False):
            return bytes(body)


def _replayed(body: bytes, receive: Receive) -> Receive:
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return messages.pop() if messages else await receive()

    return replayed


def _add_headers(start: Message) -> None:
    headers = MutableHeaders(scope=start)
    headers["X-Content-Type-Options"] = "nosniff"
    headers["Referrer-Policy"] = "same-origin"
    headers.setdefault("Content-Security-Policy", _POLICY)


def _wants_page(scope: Scope) -> bool:
    """Return whether a browser asks for a page."""
    return scope["method"] in ("GET", "HEAD") and "text/html" in Headers(scope=scope).get("accept", "")


def _with_headers(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            _add_headers(message)
        await send(message)

    return sent
