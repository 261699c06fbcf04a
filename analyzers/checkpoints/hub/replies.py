"""Asks the Hub through huggingface_hub: its failures become our errors, and what may pass is tried again, within limits."""

import re
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
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

# Raised by huggingface_hub for a reply in an unknown form
_MALFORMED = (ValueError, TypeError, KeyError, AttributeError, RecursionError)

T = TypeVar("T")
Token = str | Literal[False]


class FailedAttempt(Exception):
    """A failure that a retry may fix. error: raised if there is no retry; wait: seconds requested by the Hub."""

    def __init__(self, error: MantissaError, wait: float | None = None) -> None:
        super().__init__(str(error))
        self.error, self.wait = error, wait


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


def ask(call: Callable[[], T], refusal: Mapping[str, str], token: Token, stopped: threading.Event | None = None, tries: int = 0) -> T:
    """Return the result of ``call``, made again after failures that may pass: at most ``tries`` times, by default HUB_ATTEMPTS.

    refusal: see `refused`; stopped: ends waits with HubError once it is set. Waits are at most HUB_WAIT_SECONDS in all.
    Raises MantissaError.
    """
    stopped, waited = stopped or threading.Event(), 0.0
    for attempt in range(1, (tries or HUB_ATTEMPTS) + 1):
        if stopped.is_set():
            break
        try:
            return call()
        except (FailedAttempt, httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, OSError, *_MALFORMED) as error:
            failure = _meaning(error, refusal, token)
        wait = min(_BACKOFF_SECONDS * 2 ** (attempt - 1), 4.0) if failure.wait is None else failure.wait
        if attempt == (tries or HUB_ATTEMPTS) or waited + wait > limits.HUB_WAIT_SECONDS:
            raise failure.error
        waited += wait
        stopped.wait(wait)
    raise HubError("Reading from the Hub was stopped.")


def _meaning(error: Exception, refusal: Mapping[str, str], token: Token) -> FailedAttempt:
    """Return a failure that may pass. Raises the MantissaError of one that may not."""
    if isinstance(error, FailedAttempt):
        return error
    if isinstance(error, OfflineModeIsEnabled):
        raise HubUnreachable("Offline mode is on, so the Hub is not asked: unset HF_HUB_OFFLINE to read from it.") from None
    if isinstance(error, HfHubHTTPError):
        return refused(error.response, refusal, has_token=bool(token))
    if isinstance(error, httpx2.TimeoutException):
        return FailedAttempt(HubUnreachable("The Hub answers too slowly; try again later."))
    if isinstance(error, httpx2.ConnectError):
        return FailedAttempt(HubUnreachable("The Hub cannot be reached; check the connection or try again later."))
    if isinstance(error, (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, OSError)):
        return FailedAttempt(HubUnreachable("The Hub breaks off its answers, or does not answer in HTTP; try again later."))
    raise HubMisbehaved("The Hub's answer has an unknown form; try again later.") from None


def refused(response: httpx2.Response, refusal: Mapping[str, str], *, has_token: bool) -> FailedAttempt:
    """Interpret an unexpected status: return a failure that may pass, or raise the error of one that may not.

    refusal: sentences for a ``missing`` (or private) repository or file, a missing ``revision``, a repository that is ``gated``, or that
    is also ``closed`` to the login whose token was sent, and one that is ``disabled``.
    """
    status = response.status_code
    code = response.headers.get("x-error-code", "")
    message = response.headers.get("x-error-message", "")
    if status == 429 or (status == 503 and "retry-after" in response.headers):
        wait = retry_after(response.headers)
        asked = "" if wait is None else f" for {plural(round(wait), 'second')}"
        return FailedAttempt(HubThrottled(f"The Hub receives too many requests and asks to wait{asked}; try again then."), wait)
    if status >= 500 or status == 408:
        return FailedAttempt(HubUnreachable(f"The Hub is failing (status {status}); try again later."))
    if code == "GatedRepo":
        raise AccessDenied(refusal["closed" if has_token else "gated"])
    if code == "RevisionNotFound":
        raise CheckpointNotFound(refusal["revision"])
    if "Invalid credentials" in message or (status == 401 and has_token and not code):
        raise TokenRefused("The Hub refuses your login or token, which has expired or was revoked: log in again, or use another token.")
    if status == 403 or message == "Access to this resource is disabled.":
        raise AccessDenied(refusal["disabled"])
    if code == "RepoNotFound" or status == 401:
        raise HiddenRepository(refusal["missing"])
    if status in (404, 410):
        raise CheckpointNotFound(refusal["missing"])
    raise HubMisbehaved(f"The Hub answers with an unexpected status {status}; try again later.")


def refusals(name: str, revision: str | None, repository: str = "", licence: str = "") -> dict[str, str]:
    """Return the sentences for `refused`. name: of the repository or file; repository: the one that holds the file."""
    repository = repository or name
    accept = f"accept its licence{f' ({licence})' if licence else ''} at {str(constants.ENDPOINT).rstrip('/')}/{repository}"
    return {
        "missing": f"{name} was not found on the Hub, or is private: check the name, or read it with your own login or token.",
        "revision": f"{name} has no revision {(revision or 'main')[:100]!r} on the Hub; give a branch, a tag or a commit.",
        "gated": f"{repository} is gated: {accept}, then read it with your own login or token.",
        "closed": f"{repository} is gated, and your login or token may not read it: {accept}, or wait for its authors to let you in.",
        "disabled": f"{name} is disabled on the Hub, or not open to you.",
    }


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
