"""Who sends a request, for shares of the queues: a login, else a browser's cookie, and an address. Kept in memory only, as hashes."""

import hashlib
import secrets
from typing import Any, NamedTuple

import gradio as gr
from starlette.requests import Request
from starlette.types import Scope

COOKIE = "mantissa"
_KEY = secrets.token_bytes(16)
# `Front` adds it to each request. Its name is secret, so that nobody else can: calls of MCP clients come again from this machine with it.
_HEADER = f"x-mantissa-client-{secrets.token_hex(16)}"


class Client(NamedTuple):
    """visitor: a login, else a cookie and an address, else an address. address: it alone, because anybody can make up a cookie."""

    visitor: str
    address: str


def with_client(scope: Scope) -> Scope:
    """``scope`` with its client in a header."""
    if any(name == _HEADER.encode() for name, _ in scope["headers"]):
        return scope
    return {**scope, "headers": [*scope["headers"], (_HEADER.encode(), " ".join(_client(scope)).encode())]}


def client_of(request: gr.Request | Request | None) -> Client:
    """The client of a request that passed `with_client`; both are empty for any other."""
    headers: Any = getattr(request, "headers", None) or {}
    visitor, _, address = str(headers.get(_HEADER, "")).partition(" ")
    return Client(visitor, address)


def _client(scope: Scope) -> Client:
    login = scope.get("session", {}).get("oauth_info", {}).get("userinfo", {}).get("preferred_username")
    cookie = Request(scope).cookies.get(COOKIE)
    address = (scope.get("client") or ("",))[0]
    return Client(_hash(f"login {login}" if login else f"{address} cookie {cookie}" if cookie else address), _hash(address))


def _hash(who: str) -> str:
    return hashlib.blake2b(who.encode(errors="replace"), key=_KEY, digest_size=16).hexdigest()
