"""Makes HTTP exchanges with the Hub in bounded time and converts their failures into our errors.

A read timeout bounds the silence between two bytes, not a reply that trickles, and cannot be cut short from another thread. So every
exchange has an HTTP client to itself, whose connections are known: they are closed at the deadline, or by `Transfers.close` at any time.
Clients are reused, with their open connections.
"""

import os
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import httpx2
from huggingface_hub import is_offline_mode

from analyzers.core import limits
from analyzers.core.errors import HubError, HubMisbehaved, HubUnreachable, MantissaError

from .deadlines import call_after

HUB_MIN_BYTES_PER_SECOND = 2_000  # A slower reply, measured over 20 seconds, is abandoned.
HUB_ATTEMPTS = 5  # Attempts at one read.
_BACKOFF_SECONDS = 0.25  # before the second try; doubles before each further one
_IDLE_CLIENTS = 48  # most clients that are kept with their open connections: those of three repositories read at once


class FailedAttempt(Exception):
    """A failure that a retry may fix.

    error: raised if there is no retry; wait: seconds requested by the Hub; slow: the reply was too slow.
    """

    def __init__(self, error: MantissaError, *, wait: float | None = None, slow: bool = False) -> None:
        super().__init__(str(error))
        self.error = error
        self.wait = wait
        self.slow = slow


@cache
def _tls() -> ssl.SSLContext:
    """Return the TLS context shared by all clients: loading the certificates is slow."""
    return httpx2.create_ssl_context()


class _Client:
    """An HTTP client for one exchange at a time. overdue: the exchange exceeded its deadline."""

    def __init__(self) -> None:
        self._http = httpx2.Client(verify=_tls(), timeout=None, follow_redirects=False)
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._hung_up = False
        self.overdue = False

    def send(self, request: httpx2.Request) -> httpx2.Response:
        request.extensions = {**request.extensions, "trace": self._trace}
        return self._http.send(request, stream=True)

    def hang_up(self) -> None:
        """End the exchange from any thread by shutting down its connection. The client cannot be used afterwards."""
        self._hung_up = True
        for opened in list(self._sockets):
            with suppress(OSError):  # closed already
                socket.socket.shutdown(opened, socket.SHUT_RDWR)  # not SSLSocket.shutdown, which falls back to unencrypted reads

    def expire(self) -> None:
        """Hang up because the deadline has passed."""
        self.overdue = True
        self.hang_up()

    def release(self) -> None:
        """Return the client to the pool."""
        if self._hung_up or len(_idle) >= _IDLE_CLIENTS:
            self._http.close()
        else:
            _idle.append(self)

    def _trace(self, event: str, info: Mapping[str, Any]) -> None:
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            self._sockets.add(info["return_value"].get_extra_info("socket"))
            if self._hung_up:
                self.hang_up()


_idle: list[_Client] = []
os.register_at_fork(after_in_child=_idle.clear)  # connections must not be shared between processes


def _client() -> _Client:
    with suppress(IndexError):
        return _idle.pop()
    return _Client()


@dataclass(eq=False)
class Transfers:
    """The exchanges of one owner, all ended by `close`. Safe to use from several threads."""

    _closed: threading.Event = field(default_factory=threading.Event)
    _clients: set[_Client] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def close(self) -> None:
        """End waits and exchanges at once; everything later raises HubError. Idempotent."""
        self._closed.set()
        with self._lock:
            for client in self._clients:
                client.hang_up()

    def check(self) -> None:
        """Raise HubError if closed."""
        if self._closed.is_set():
            raise HubError("Reading from the Hub was stopped.")

    def wait(self, seconds: float) -> None:
        """Sleep; raise HubError as soon as the exchanges are closed."""
        self._closed.wait(seconds)
        self.check()

    @contextmanager
    def send(
        self, method: str, url: httpx2.URL, headers: Mapping[str, str], *, seconds: float | None = None, whole: float | None = None
    ) -> Iterator[httpx2.Response]:
        """Send a request without following redirects and yield its reply, body unread. The reply is closed on leaving.

        seconds: longest silence, and longest wait for the complete headers; by default HUB_TIMEOUT_SECONDS. whole: longest time for the
        reply with its body; by default only `body` bounds the body. Raises FailedAttempt, inside the ``with`` block too; HubError once
        closed.
        """
        self.check()
        seconds = limits.HUB_TIMEOUT_SECONDS if seconds is None else seconds
        if is_offline_mode():
            raise FailedAttempt(
                HubUnreachable("Offline mode is on, so the Hub is not asked: unset HF_HUB_OFFLINE to read from it."), slow=True
            )
        client, response = _client(), None
        deadlines = [call_after(seconds if whole is None else min(seconds, whole), client.expire)]
        if whole is not None:
            deadlines.append(call_after(whole, client.expire))
        with self._lock:
            self._clients.add(client)
        try:
            self.check()  # close() may have been called before the client was listed
            timeout = dict.fromkeys(("connect", "read", "write", "pool"), seconds)
            response = client.send(httpx2.Request(method, url, headers=dict(headers), extensions={"timeout": timeout}))
            deadlines[0].cancel()
            self.check()
            yield response
        except (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, UnicodeError, OSError) as error:
            self.check()
            raise _failed_attempt(error, client.overdue, replied=response is not None) from None
        finally:
            for deadline in deadlines:
                deadline.cancel()
            with self._lock:
                self._clients.discard(client)
            if response is not None:
                response.close()
            client.release()

    def body(self, response: httpx2.Response) -> Iterator[bytes]:
        """Yield the body of a reply in pieces. Raises FailedAttempt if it is slower than HUB_MIN_BYTES_PER_SECOND."""
        window = limits.HUB_TIMEOUT_SECONDS
        end, count = time.monotonic() + window, 0
        for piece in response.iter_raw():
            yield piece
            count += len(piece)
            now = time.monotonic()
            if now >= end:
                if count < HUB_MIN_BYTES_PER_SECOND * window:
                    raise _too_slow()
                end, count = now + window, 0


class Patience:
    """Bounds the failures of one read: HUB_ATTEMPTS tries, HUB_WAIT_SECONDS of waiting, two slow replies."""

    def __init__(self, transfers: Transfers) -> None:
        self._transfers = transfers
        self._waited = 0.0
        self.progress()

    def progress(self) -> None:
        """Reset the count of failures, but not the time waited, after a try that read something."""
        self._failures = 0
        self._slow = 0

    def after(self, failure: FailedAttempt) -> None:
        """Wait until the next try is due, or raise the error that ends the read."""
        self._failures += 1
        self._slow += failure.slow
        if self._failures >= HUB_ATTEMPTS or self._slow >= 2:
            raise failure.error from None
        wait = min(_BACKOFF_SECONDS * 2 ** (self._failures - 1), 4.0) if failure.wait is None else failure.wait
        if self._waited + wait > limits.HUB_WAIT_SECONDS:
            raise failure.error from None
        self._waited += wait
        self._transfers.wait(wait)


def _too_slow() -> FailedAttempt:
    return FailedAttempt(HubUnreachable("The Hub answers too slowly; try again later."), slow=True)


def _failed_attempt(error: Exception, overdue: bool, replied: bool) -> FailedAttempt:
    if overdue or isinstance(error, httpx2.TimeoutException):
        return _too_slow()
    if isinstance(error, httpx2.InvalidURL | UnicodeError):
        return FailedAttempt(HubMisbehaved("The Hub points to an address that cannot be used."))
    cut = replied or "disconnected" in str(error)
    if isinstance(error, httpx2.ProtocolError) and not cut:
        return FailedAttempt(HubMisbehaved("The Hub, or a proxy in front of it, does not answer in HTTP; try again later."))
    if cut:
        return FailedAttempt(HubUnreachable("The Hub breaks off its answers; try again later."))
    return FailedAttempt(HubUnreachable("The Hub cannot be reached; check the connection or try again later."))
