"""Identifies the sender of a request: by login, else by the secret in the browser's cookie. Never by a form field."""

import hashlib
import os
import re
import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import gradio as gr
from gradio.utils import get_space
from starlette.requests import Request
from starlette.types import Scope

from analyzers.checkpoints import Access
from analyzers.core.errors import InvalidRequest
from components.library import Identity
from components.site.stored_results import our_library

COOKIE = "mantissa"
# A cookie is weak evidence of identity, so the library counts labels without a login separately.
_LONGEST = 200
_OAUTH = ("OAUTH_CLIENT_ID", "OAUTH_CLIENT_SECRET", "OAUTH_SCOPES", "OPENID_PROVIDER_URL")
# Only the Hub's tokens: the token of a proxy in front of this app must not reach the Hub.
_BEARER = re.compile(r"bearer +(hf_\S+)", re.IGNORECASE)
LOG_IN = "Log in with Hugging Face first: a label carries the name of its contributor."
_NOBODY = f"Say who contributes: send a cookie, {COOKIE}=SECRET, with a secret of your own; the library's page sets one."


def has_login() -> bool:
    """Return whether this app lets people log in: a Space with ``hf_oauth: true``.

    Elsewhere, Gradio's login is a mock that anybody can forge.
    """
    return get_space() is not None and all(os.environ.get(name) for name in _OAUTH)


def may_open_pull_requests() -> bool:
    """Return whether a login here may allow this app to open pull requests: a Space that asks for the scope write-discussions."""
    return has_login() and "write-discussions" in os.environ["OAUTH_SCOPES"].split()


def space_hosts() -> list[str]:
    """Return the public host names of this Space, its own first, then a custom domain; none elsewhere."""
    return [host.strip() for host in os.environ.get("SPACE_HOST", "").split(",") if host.strip()]


def new_secret() -> str:
    """Return a new secret that identifies a browser without a login."""
    return secrets.token_urlsafe(24)


def identity(profile: Mapping[str, Any] | None, request: gr.Request | None) -> Identity:
    """Return the identity of the sender of ``request``. profile: of the login, as Gradio read it from the session.

    Raises InvalidRequest without a login where one is required, without login and cookie, and for a
    cross-site request; LibraryUnavailable.
    """
    ours = our_library()
    headers = getattr(request, "headers", None) or {}
    if _elsewhere(headers):
        raise InvalidRequest("This request comes from a page of another site: contribute on the library's own page.")
    if profile is not None:
        return Identity.login(str(profile.get("preferred_username") or ""), organisations(profile))
    if has_login():
        raise InvalidRequest(LOG_IN)
    secret = str((getattr(request, "cookies", None) or {}).get(COOKIE, ""))[:_LONGEST]
    if not secret:
        raise InvalidRequest(_NOBODY)
    return ours.local_identity(secret, client_of(request).address)


def access_of(request: gr.Request | Request | None, login: gr.OAuthToken | None) -> Access:
    """Return what the sender of ``request`` may read: with the Hub token in its Authorization header, else with that of the login.

    login: as Gradio read it from the session or the body of the call. Not used for a request from a page of another site, which the
    browser sends with the session's cookie and which could read the answer.
    """
    headers = getattr(request, "headers", None) or {}
    if sent := _BEARER.fullmatch(str(headers.get("authorization", "")).strip()):
        return Access(token=sent[1])
    return Access(token=login.token) if login is not None and not _elsewhere(headers) else Access()


def login_page(address: str) -> str:
    """Return the address that logs a visitor in and then opens ``address`` of this site; empty if nobody can log in."""
    return f"login/huggingface?_target_url={quote(f'/{address}', safe='')}" if has_login() else ""


def organisations(profile: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the organisations in a login's profile, if it has any."""
    told = profile.get("orgs")
    listed = [each for each in told if isinstance(each, Mapping)] if isinstance(told, list) else []
    return tuple(str(each["preferred_username"]) for each in listed if each.get("preferred_username"))


def _elsewhere(headers: Mapping[str, str]) -> bool:
    """Return whether a browser sent this from a page of another site; other programs do not send these headers.

    Uses only headers that scripts cannot set: Sec-Fetch-Site or, in browsers without it, Origin compared with the requested host.
    """
    if site := headers.get("sec-fetch-site"):
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    return bool(origin) and urlsplit(origin or "").netloc not in {headers.get("host", ""), *space_hosts()} - {""}


_KEY = secrets.token_bytes(16)
# Header that `Front` adds to each request. Its name is secret, so that nobody else can send it.
_HEADER = f"x-mantissa-client-{secrets.token_hex(16)}"


class Client(NamedTuple):
    """The client of a request.

    visitor: hash of a login, else of a cookie and an address, else of an address. address: hash of the address alone, because anybody can
    make up a cookie.
    """

    visitor: str
    address: str


def with_client(scope: Scope) -> Scope:
    """Return ``scope`` with its client in a header."""
    return {**scope, "headers": [*scope["headers"], (_HEADER.encode(), " ".join(_client(scope)).encode())]}


def client_of(request: gr.Request | Request | None) -> Client:
    """Return the client of a request that passed `with_client`; both fields are empty for any other request."""
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
