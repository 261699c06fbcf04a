"""Implements the outermost layer of the app: early refusals, each address's share of requests, and responses in pieces."""

import ipaddress
import os
import re
from collections import Counter

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from analyzers.core import limits
from components.server.connections import MOST
from components.site.identity import space_hosts

# Largest piece of a response; uvicorn keeps up to two of them for a client that does not read.
_PIECE = 1 << 16
# Gradio takes its own address from these headers, and would store it in a page for everybody.
_FORWARDED = b"x-forwarded-host"
_ADDRESSES = (b"x-gradio-server", _FORWARDED)
_HOST = re.compile(r"(?:\[([^]]*)\]|([^:]*))(?::\d*)?")
_TWO_LENGTHS = "A request has either Content-Length or Transfer-Encoding, not both."
_NO_LENGTH = "A request with a body must state its length: send Content-Length instead of Transfer-Encoding."
_OTHER_HOST = "This app does not serve this host name; its operator can add it to MANTISSA_HOSTS."
# Below the largest number of connections.
_SHARE = min(limits.REQUESTS_PER_ADDRESS, MOST // 2)
_TOO_MANY = f"At most {_SHARE} requests of one address are answered at once (MANTISSA_REQUESTS_PER_ADDRESS)."


class Gate:
    """ASGI middleware that refuses unknown Host headers: no page of another name can send requests here, whatever its name resolves to."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._under_way: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, address = Headers(scope=scope), (scope.get("client") or ("",))[0]
        refusal = None
        if "content-length" in headers and "transfer-encoding" in headers:
            refusal = 400, _TWO_LENGTHS  # a proxy in front might read the other header
        elif "transfer-encoding" in headers:
            refusal = 411, _NO_LENGTH  # a million one-byte chunks would be parsed one by one
        elif not (is_ours(headers.get("host", "")) or ("host" not in headers and scope["http_version"] == "1.0")):
            refusal = 421, _OTHER_HOST
        elif self._under_way[address] >= _SHARE:
            refusal = 503, _TOO_MANY
        if refusal is not None:
            await PlainTextResponse(refusal[1], refusal[0], {"Connection": "close"})(scope, receive, send)
            return
        self._under_way[address] += 1
        try:
            kept = [
                (name, value) for name, value in scope["headers"] if name not in _ADDRESSES or (name == _FORWARDED and _all_ours(value))
            ]
            await self._app({**scope, "headers": kept}, receive, _in_pieces(send))
        finally:
            self._under_way[address] -= 1
            if not self._under_way[address]:
                del self._under_way[address]


def is_ours(host: str) -> bool:
    """Return whether a Host header names this app: an IP address, localhost, a Space's name, or a name listed by the operator.

    An IP address is safe, since no other site can serve its pages there.
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
    """Return whether every host that proxies name is one of the app's."""
    return all(is_ours(host) for host in hosts.decode("latin-1").split(","))


def _in_pieces(send: Send) -> Send:
    """Wrap ``send`` to send pieces one after the other as the client reads: whole answers would wait in memory, once per client."""

    async def sent(message: Message) -> None:
        rest = memoryview(message.get("body", b""))
        while len(rest) > _PIECE:
            await send({**message, "body": bytes(rest[:_PIECE]), "more_body": True})
            rest = rest[_PIECE:]
        await send({**message, "body": bytes(rest)} if rest else message)

    return sent
