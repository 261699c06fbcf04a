"""Identifies the sender of a request by login, else by address, and says what may be read with it. Never by a form field."""

import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

import gradio as gr
from gradio.utils import get_space
from starlette.requests import Request

from analyzers.checkpoints import Access
from analyzers.core.errors import InvalidRequest
from components.library import Identity

_OAUTH = ("OAUTH_CLIENT_ID", "OAUTH_CLIENT_SECRET", "OAUTH_SCOPES", "OPENID_PROVIDER_URL")
# Only the Hub's tokens: the token of a proxy in front of this app must not reach the Hub.
_BEARER = re.compile(r"bearer +(hf_\S+)", re.IGNORECASE)
LOG_IN = "Log in with Hugging Face first: a label carries the name of its contributor."
_ELSEWHERE = "This request comes from a page of another site: contribute on the library's own page."


def has_login() -> bool:
    """Return whether this app lets people log in: a Space with ``hf_oauth: true``. Elsewhere, Gradio's login is a mock."""
    return get_space() is not None and all(os.environ.get(name) for name in _OAUTH)


def may_open_pull_requests() -> bool:
    """Return whether a login here may allow this app to open pull requests: a Space that asks for the scope write-discussions."""
    return has_login() and "write-discussions" in os.environ["OAUTH_SCOPES"].split()


def is_own_app() -> bool:
    """Return whether only the owner's machine reaches this app: no Space, no proxy, and it listens at loopback."""
    served = any(os.environ.get(name) for name in ("SPACE_ID", "FORWARDED_ALLOW_IPS", "GRADIO_ROOT_PATH"))
    return not served and os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1").strip("[]") in ("127.0.0.1", "localhost", "::1")


def space_hosts() -> list[str]:
    """Return the public host names of this Space, its own first, then a custom domain; none elsewhere."""
    return [host.strip() for host in os.environ.get("SPACE_HOST", "").split(",") if host.strip()]


def contributor(profile: Mapping[str, Any] | None, request: gr.Request) -> Identity:
    """Return who adds a label: the login, or in an app of one's own its owner. Raises InvalidRequest."""
    if elsewhere(request.headers):
        raise InvalidRequest(_ELSEWHERE)
    if profile is not None and has_login():
        return Identity.login(str(profile.get("preferred_username") or ""), _organisations(profile))
    if not is_own_app():
        raise InvalidRequest(LOG_IN)
    return Identity.local()


def access_of(request: gr.Request | Request, login: gr.OAuthToken | None) -> Access:
    """Return what the sender may read: with the Hub token in its Authorization header, else with that of its login.

    The login is not used for a page of another site, which the browser sends with the session's cookie.
    """
    if sent := _BEARER.fullmatch(str(request.headers.get("authorization", "")).strip()):
        return Access(token=sent[1])
    return Access(token=login.token) if login is not None and has_login() and not elsewhere(request.headers) else Access()


def visitor_of(request: gr.Request | Request, access: Access) -> str:
    """Return what tells visitors apart for their share of the runs: the token, else the address."""
    client = request.client
    return f"token {hash(access.token)}" if isinstance(access.token, str) else str(getattr(client, "host", ""))


def login_page(address: str) -> str:
    """Return the address that logs a visitor in and then opens ``address`` of this site; "" if nobody can log in."""
    return f"login/huggingface?_target_url={quote(f'/{address}', safe='')}" if has_login() else ""


def elsewhere(headers: Mapping[str, str]) -> bool:
    """Return whether a browser sent this from a page of another site; other programs do not send these headers.

    Uses only headers that scripts cannot set: Sec-Fetch-Site or, in browsers without it, Origin compared with the requested host.
    """
    if site := headers.get("sec-fetch-site"):
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    return bool(origin) and urlsplit(origin or "").netloc not in {headers.get("host", ""), *space_hosts()} - {""}


def _organisations(profile: Mapping[str, Any]) -> tuple[str, ...]:
    told = profile.get("orgs")
    listed = [each for each in told if isinstance(each, Mapping)] if isinstance(told, list) else []
    return tuple(str(each["preferred_username"]) for each in listed if each.get("preferred_username"))
