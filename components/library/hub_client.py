"""The HTTP client that huggingface_hub writes with: every request has a timeout, and a refusal is raised instead of waited for.

huggingface_hub by itself waits for a silent Hub without end, and before it tries again for as long as the Hub asks, which nobody can stop.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

from analyzers import limits

_PASSING = (408, 429, 500, 502, 503, 504)
_publishing = threading.local()


class Refused(Exception):
    """A status after which huggingface_hub would wait and try again."""

    def __init__(self, status: int, headers: Mapping[str, str]) -> None:
        super().__init__(status)
        self.status = status
        self.headers = headers


@cache
def use_bounded_client() -> None:
    """From now on, in this process, give every request of huggingface_hub HUB_TIMEOUT_SECONDS unless it says otherwise."""
    import httpx2
    from huggingface_hub import get_session, set_client_factory

    theirs = get_session().event_hooks

    def bounded() -> httpx2.Client:
        hooks = {"request": theirs["request"], "response": [*theirs["response"], _refuse]}
        return httpx2.Client(event_hooks=hooks, follow_redirects=True, timeout=float(limits.HUB_TIMEOUT_SECONDS))

    set_client_factory(bounded)


@contextmanager
def refusals_raised() -> Iterator[None]:
    """Inside, requests of this thread raise Refused; those of other threads, downloads for example, are tried again as usual."""
    _publishing.active = True
    try:
        yield
    finally:
        _publishing.active = False


def _refuse(response: Any) -> None:
    if getattr(_publishing, "active", False) and response.status_code in _PASSING:
        raise Refused(response.status_code, dict(response.headers))
