"""Who sends a request, for shares of the queues: a login, else a browser's cookie, else an address. Kept in memory only, as a hash."""

import hashlib
import secrets
from typing import Any

import gradio as gr
from starlette.requests import Request
from starlette.types import Scope

from components.site.identity import COOKIE

_KEY = secrets.token_bytes(16)
# `Front` adds it to each request. Its name is secret, so that nobody else can: calls of MCP clients come again from this machine with it.
_HEADER = f"x-mantissa-client-{secrets.token_hex(16)}"


def with_client(scope: Scope) -> Scope:
    """``scope`` with its client in a header."""
    if any(name == _HEADER.encode() for name, _ in scope["headers"]):
        return scope
    return {**scope, "headers": [*scope["headers"], (_HEADER.encode(), _client(scope).encode())]}


def client_of(request: gr.Request | Request | None) -> str:
    """The client of a request that passed `with_client`; "" for any other."""
    headers: Any = getattr(request, "headers", None) or {}
    return str(headers.get(_HEADER, ""))


def _client(scope: Scope) -> str:
    login = scope.get("session", {}).get("oauth_info", {}).get("userinfo", {}).get("preferred_username")
    cookie = Request(scope).cookies.get(COOKIE)
    address = (scope.get("client") or ("",))[0]
    who = f"login {login}" if login else f"cookie {cookie}" if cookie else f"address {address}"
    return hashlib.blake2b(who.encode(errors="replace"), key=_KEY, digest_size=16).hexdigest()
