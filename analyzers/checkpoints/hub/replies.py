"""Asks the Hub through huggingface_hub: its failures become our errors, and what may pass is tried again, within limits."""

import re
import threading
from collections.abc import Callable, Mapping
from typing import Literal, TypeVar

import httpx2
from huggingface_hub import constants, get_token
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

from analyzers.core import limits
from analyzers.core.errors import (
    AccessDenied,
    CheckpointNotFound,
    HiddenRepository,
    HubError,
    HubMisbehaved,
    HubThrottled,
    HubUnreachable,
    MantissaError,
    TokenRefused,
)
from analyzers.core.terminal import plural

HUB_ATTEMPTS = 5  # Attempts at one read.
_BACKOFF_SECONDS = 0.25  # before the second try; doubles before each further one
_RESET = re.compile(r";\s*t\s*=\s*([0-9]{1,9})(?![0-9])")  # for example: "api";r=0;t=55
_TOKEN = re.compile(r"[\x21-\x7e]{1,1000}")

_CONNECTION = (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, OSError)
# Raised by huggingface_hub for a reply in an unknown form
_MALFORMED = (ValueError, TypeError, KeyError, AttributeError, RecursionError)

T = TypeVar("T")
Token = str | Literal[False]


def usable_token(token: str | bool | None) -> Token:
    """Return the token to send, False for none. token: as in `repository.Access`. Raises TokenRefused, AccessDenied."""
    if token is True:
        try:
            token = get_token() or False
        except Exception:  # the library may exchange or refresh tokens over the network, and does not document the errors
            raise AccessDenied("This machine's login to the Hub cannot be used; log in again.") from None
    if isinstance(token, str) and not _TOKEN.fullmatch(token):
        raise TokenRefused("The Hub token is not valid; check it and try again.")
    return token if isinstance(token, str) else False


def ask(call: Callable[[], T], ref: str, stopped: threading.Event | None = None, tries: int = 0) -> T:
    """Return the result of ``call``, made again after failures that may pass: at most ``tries`` times, by default HUB_ATTEMPTS.

    ref: the repository that is asked for; stopped: ends waits with HubError once it is set. Waits are at most HUB_WAIT_SECONDS in all.
    Raises MantissaError.
    """
    stopped, waited, tries = stopped or threading.Event(), 0.0, tries or HUB_ATTEMPTS
    for attempt in range(1, tries + 1):
        if stopped.is_set():
            break
        wait = min(_BACKOFF_SECONDS * 2 ** (attempt - 1), 4.0)
        try:
            return call()
        except OfflineModeIsEnabled:
            raise HubUnreachable("Offline mode is on, so the Hub is not asked: unset HF_HUB_OFFLINE, or give a local folder.") from None
        except HubUnreachable as unreachable:
            error: MantissaError = unreachable
        except (*_CONNECTION, *_MALFORMED) as failure:
            error = meaning(failure, ref)
            if isinstance(error, HubThrottled) and isinstance(failure, HfHubHTTPError):
                asked = _requested_wait(failure.response.headers)
                wait = wait if asked is None else asked
        passing = isinstance(error, HubUnreachable | HubThrottled)
        if not passing or attempt == tries or waited + wait > limits.HUB_WAIT_SECONDS:
            raise error
        waited += wait
        stopped.wait(wait)
    raise HubError("Reading from the Hub was stopped.")


def meaning(failure: Exception, ref: str) -> MantissaError:
    """Return the error that a failure of huggingface_hub means. ref: the repository that was asked for."""
    if isinstance(failure, HfHubHTTPError):
        return _refusal(failure.response, ref)
    if isinstance(failure, httpx2.TimeoutException):
        return HubUnreachable("The Hub answers too slowly; try again later.")
    if isinstance(failure, _CONNECTION):
        return HubUnreachable("The Hub cannot be reached, or breaks off its answers; check the connection or try again later.")
    return HubMisbehaved("The Hub's answer has an unknown form; try again later.")


def _refusal(response: httpx2.Response, ref: str) -> MantissaError:
    """Return the error for a status of failure, read from the headers alone: nobody bounds the body."""
    status, headers = response.status_code, response.headers
    code = headers.get("x-error-code", "")
    if status == 429 or (status == 503 and "retry-after" in headers):
        wait = _requested_wait(headers)
        asked = "" if wait is None else f" for {plural(round(wait), 'second')}"
        return HubThrottled(f"The Hub receives too many requests and asks to wait{asked}; try again then.")
    if status >= 500 or status == 408:
        return HubUnreachable(f"The Hub is failing (status {status}); try again later.")
    if code == "GatedRepo":
        page = f"{str(constants.ENDPOINT).rstrip('/')}/{ref}"
        return AccessDenied(f"{ref} is gated: accept its licence at {page}, then read it with a login or token that its authors let in.")
    if code == "RevisionNotFound":
        return CheckpointNotFound(f"{ref} has no such revision on the Hub; give a branch, a tag or a commit.")
    if "Invalid credentials" in headers.get("x-error-message", ""):
        return TokenRefused("The Hub refuses your login or token, which has expired or was revoked: log in again, or use another token.")
    if status == 403:
        return AccessDenied(f"{ref} is disabled on the Hub, or not open to you.")
    if status in (401, 404, 410):
        return HiddenRepository(f"{ref} was not found on the Hub, or is private: check the name, or read it with your own login or token.")
    return HubMisbehaved(f"The Hub answers with an unexpected status {status}; try again later.")


def _requested_wait(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a reply asks to wait, by Retry-After or RateLimit; None if it does not say."""
    seconds = headers.get("retry-after", "").strip()[:9]
    if seconds.isascii() and seconds.isdecimal():
        return float(seconds)
    reset = _RESET.search(headers.get("ratelimit", ""))
    return None if reset is None else float(reset[1])
