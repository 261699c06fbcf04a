"""Interprets the Hub's replies: refusals become our errors, redirects are followed explicitly, JSON is limited in size."""

import ipaddress
import re
import socket
import time
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

import httpx2
from huggingface_hub import __version__, constants, get_token

from analyzers.core import limits
from analyzers.core.errors import (
    AccessDenied,
    CheckpointNotFound,
    HiddenRepository,
    HubMisbehaved,
    HubThrottled,
    HubUnreachable,
    MantissaError,
    TokenRefused,
)
from analyzers.core.terminal import plural
from analyzers.core.untrusted_json import InvalidJson, parse_json

from .transfers import FailedAttempt, Patience, Transfers

HUB_REPLY_BYTES = 50_000_000  # A reply of the Hub's API (a file list) is parsed in memory.
REDIRECTS = 5  # most redirects followed for one reply
_RESET = re.compile(r";\s*t\s*=\s*([0-9]{1,9})(?![0-9])")  # for example: "api";r=0;t=55
_NEXT = re.compile(r'<([^<>\s]{1,2000})>\s*;\s*rel="?next"?')  # for example: <https://.../api/models?cursor=...>; rel="next"
_TOKEN = re.compile(r"[\x21-\x7e]{1,1000}")


class Hub:
    """The address of the Hub and the caller's token. Decides which requests may carry the token.

    token: as in `repository.Access`: None for anonymous requests, True for the token that huggingface_hub finds, or the token itself.
    Raises TokenRefused for an invalid token.
    """

    def __init__(self, token: str | bool | None) -> None:
        self.url = str(constants.ENDPOINT).rstrip("/")
        self._origin = _origin(httpx2.URL(self.url))
        self._anonymous = {"user-agent": f"mantissa; hf_hub/{__version__}", "accept-encoding": "identity"}
        self._authorized = self._anonymous
        found = _logged_in() if token is True else token
        if isinstance(found, str):
            if not _TOKEN.fullmatch(found):
                raise TokenRefused("The Hub token is not valid; check it and try again.")
            self._authorized = {**self._anonymous, "authorization": f"Bearer {found}"}

    @property
    def has_token(self) -> bool:
        """Return whether requests to the Hub carry a token."""
        return "authorization" in self._authorized

    def owns(self, url: httpx2.URL) -> bool:
        """Return whether an address has the Hub's own scheme, host and port."""
        return _origin(url) == self._origin

    def headers(self, url: httpx2.URL) -> Mapping[str, str]:
        """Return the headers for a request to ``url``; they carry the token only if the Hub itself is addressed."""
        return self._authorized if self.owns(url) else self._anonymous

    def target(self, url: httpx2.URL, response: httpx2.Response) -> httpx2.URL | None:
        """Return the target of a redirect; None if the reply is not a redirect.

        Raises HubMisbehaved for an address that is not plain HTTP or HTTPS, or in a private network that the Hub itself is not in.
        """
        if response.status_code not in (301, 302, 303, 307, 308):
            return None
        try:
            found = url.join(response.headers.get("location", ""))
        except (httpx2.InvalidURL, ValueError):
            raise HubMisbehaved("The Hub points to an address that cannot be used.") from None
        secure = found.scheme == "https" or (found.scheme == "http" and url.scheme == "http")
        if not (secure and found.host and "location" in response.headers) or found.userinfo:
            raise HubMisbehaved("The Hub points to an address that cannot be used.")
        if not self.owns(found) and _networks(found) - _networks(httpx2.URL(self.url)) - {"public"}:
            raise HubMisbehaved("The Hub redirects into a private network; nothing was read from there.")
        return found

    def get(
        self, transfers: Transfers, url: str, refusal: Mapping[str, str], *, seconds: float | None = None, tries: bool = True
    ) -> tuple[Any, str | None]:
        """GET a JSON reply of at most HUB_REPLY_BYTES, in at most ``seconds`` (default HUB_WAIT_SECONDS) per try.

        Returns the reply and the address of the next page, None unless it is a page of a list and not the last. refusal: see `refused`.
        Raises MantissaError.
        """
        patience = Patience(transfers)
        while True:
            try:
                return self._json(transfers, httpx2.URL(url), refusal, seconds)
            except FailedAttempt as failure:
                if not tries:
                    raise failure.error from None
                patience.after(failure)

    def _json(self, transfers: Transfers, url: httpx2.URL, refusal: Mapping[str, str], seconds: float | None) -> tuple[Any, str | None]:
        whole = limits.HUB_WAIT_SECONDS if seconds is None else seconds
        for _ in range(REDIRECTS):
            with transfers.send("GET", url, self.headers(url), seconds=seconds, whole=whole) as response:
                target = self.target(url, response)
                if target is not None and self.owns(target):
                    url = target
                    continue
                if response.status_code != 200:
                    raise refused(response, refusal, has_token=self.has_token)
                content = bytearray()
                for piece in transfers.body(response):
                    content += piece
                    if len(content) > HUB_REPLY_BYTES:
                        raise HubMisbehaved(f"The Hub's answer is longer than {HUB_REPLY_BYTES:,} bytes.")
                try:
                    return parse_json(content), self._next(url, response)
                except InvalidJson as error:
                    raise HubMisbehaved(f"The Hub's answer {error}; try again later.") from None
        raise HubMisbehaved("The Hub redirects in circles.")

    def _next(self, url: httpx2.URL, response: httpx2.Response) -> str | None:
        """Return the address of the next page in a reply's Link header, if it is on the Hub itself."""
        match = _NEXT.search(response.headers.get("link", "")[:4000])
        try:
            found = url.join(match[1]) if match else None
        except (httpx2.InvalidURL, ValueError):
            return None
        return str(found) if found is not None and self.owns(found) and not found.userinfo else None


def _logged_in() -> str | None:
    """Return the token of this machine, by huggingface_hub's own rules; None without a login."""
    try:
        found = get_token()
    except Exception:  # the library may exchange or refresh tokens over the network, and does not document the errors
        raise AccessDenied("This machine's login to the Hub cannot be used; log in again.") from None
    return str(found) if found else None


def _networks(url: httpx2.URL) -> set[str]:
    """Return the kinds of network that a host name resolves to; empty if it does not resolve on this machine, as behind a proxy."""
    try:
        found = socket.getaddrinfo(url.host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return set()
    networks = set()
    for *_, address in found:
        ip = ipaddress.ip_address(str(address[0]).partition("%")[0])
        ip = getattr(ip, "ipv4_mapped", None) or ip
        kind = "loopback" if ip.is_loopback else "link-local" if ip.is_link_local else "public" if ip.is_global else "private"
        networks.add(kind)
    return networks


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port or {"http": 80, "https": 443}.get(url.scheme)


def refused(response: httpx2.Response, refusal: Mapping[str, str], *, has_token: bool) -> MantissaError | FailedAttempt:
    """Interpret an unexpected status: return an error to raise, or a FailedAttempt if another try may succeed.

    refusal: sentences for a ``missing`` (or private) repository or file, a missing ``revision``, a repository that is ``gated``, or that
    is also ``closed`` to the login whose token was sent, and one that is ``disabled``.
    """
    status = response.status_code
    code = response.headers.get("x-error-code", "")
    message = response.headers.get("x-error-message", "")
    if status == 429 or (status == 503 and "retry-after" in response.headers):
        wait = retry_after(response.headers)
        asked = "" if wait is None else f" for {plural(round(wait), 'second')}"
        throttled = HubThrottled(f"The Hub receives too many requests and asks to wait{asked}; try again then.")
        return FailedAttempt(throttled, wait=wait)
    if status >= 500 or status == 408:
        return FailedAttempt(HubUnreachable(f"The Hub is failing (status {status}); try again later."))
    if code == "GatedRepo":
        return AccessDenied(refusal["closed" if has_token else "gated"])
    if code == "RevisionNotFound":
        return CheckpointNotFound(refusal["revision"])
    if "Invalid credentials" in message or (status == 401 and has_token and not code):
        return TokenRefused("The Hub refuses your login or token, which has expired or was revoked: log in again, or use another token.")
    if status == 403 or message == "Access to this resource is disabled.":
        return AccessDenied(refusal["disabled"])
    if code == "RepoNotFound" or status == 401:
        return HiddenRepository(refusal["missing"])
    if status in (404, 410):
        return CheckpointNotFound(refusal["missing"])
    if status == 416:
        return HubMisbehaved("The Hub says that the file is shorter than before; try again later.")
    return HubMisbehaved(f"The Hub answers with an unexpected status {status}; try again later.")


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a reply asks to wait, by Retry-After (a number or a date) or RateLimit; None if it does not say."""
    text = headers.get("retry-after", "").strip()[:40]
    if text.isascii() and text.isdecimal():
        return float(text)
    try:
        date = parsedate_to_datetime(text)
        return max(0.0, (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        pass
    reset = _RESET.search(headers.get("ratelimit", ""))
    return None if reset is None else float(reset[1])


def as_unreachable(error: MantissaError) -> HubUnreachable:
    """Convert an error to HubUnreachable with the same message, for callers that treat all failures of the Hub alike."""
    return error if isinstance(error, HubUnreachable) else HubUnreachable(str(error))
