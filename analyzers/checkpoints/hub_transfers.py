"""One exchange with the Hub in bounded time: request, reply, and what may go wrong between them, as our errors.

A read timeout bounds the silence between two bytes, not a reply that trickles. So every exchange has a deadline, and
a watching thread hangs up on the connection of an exchange that is past it. The same hanging up makes
`Transfers.close` prompt, whatever the other threads are waiting for.
"""

import itertools
import socket
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
from huggingface_hub import get_session
from huggingface_hub.errors import OfflineModeIsEnabled

from .. import limits
from ..errors import HubError, HubMisbehaved, HubUnreachable, MantissaError

_TICK_SECONDS = 0.1  # how late a deadline may be noticed
_BACKOFF_SECONDS = 0.25  # before the second try; doubled before each further one


@dataclass(eq=False, slots=True)
class Exchange:
    """One request and its reply. ``seconds`` is its socket timeout, different from that of any other exchange in flight."""

    seconds: float
    deadline: float
    response: httpx2.Response | None = None
    overdue: bool = False


class Setback(Exception):
    """A failure that another try may mend. ``error`` is what to raise when there is none; ``wait`` what the Hub asked for, in seconds."""

    def __init__(self, error: MantissaError, *, wait: float | None = None, slow: bool = False) -> None:
        super().__init__(str(error))
        self.error = error
        self.wait = wait
        self.slow = slow


class _Watch:
    """Hangs up on exchanges that are past their deadline.

    The client's pool does not tell which connection an exchange was given. But it sets the timeout of an exchange on the
    socket before each read, and no two exchanges in flight have the same: that is how the right socket is found.
    """

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._serial = itertools.count()
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._exchanges: set[Exchange] = set()
        self._thread: threading.Thread | None = None

    def start(self, seconds: float, deadline: float) -> Exchange:
        exchange = Exchange(seconds + next(self._serial) % 500_000 * 1e-6, deadline)
        with self._lock:
            self._exchanges.add(exchange)
            if self._thread is None or not self._thread.is_alive():  # not alive: after a fork
                self._thread = threading.Thread(target=self._run, name="hub-deadlines", daemon=True)
                self._thread.start()
            if len(self._exchanges) == 1:
                self._lock.notify()
        return exchange

    def end(self, exchange: Exchange) -> None:
        with self._lock:
            self._exchanges.discard(exchange)

    def saw(self, stream: Any) -> None:
        """Remember a connection's socket."""
        found = stream.get_extra_info("socket")
        if found is not None:
            with self._lock:
                self._sockets.add(found)

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """The client's trace hook: remembers the sockets it opens."""
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            self.saw(info["return_value"])

    def hang_up(self, exchange: Exchange) -> None:
        """Shut the connection of an exchange, if it has one by now; its reader then sees the end of the reply."""
        with self._lock:
            for sock in list(self._sockets):
                timeout = sock.gettimeout()
                if timeout is not None and abs(timeout - exchange.seconds) < 4e-7:
                    try:
                        socket.socket.shutdown(sock, socket.SHUT_RDWR)  # not SSLSocket's, which would drop to plain reads
                    except OSError:
                        continue  # closed already

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._exchanges:
                    self._lock.wait()
                now = time.monotonic()
                late = [exchange for exchange in self._exchanges if exchange.deadline < now]
                for exchange in late:
                    exchange.overdue = True
            for exchange in late:
                self.hang_up(exchange)
            time.sleep(_TICK_SECONDS)


_watch = _Watch()


@dataclass(eq=False)
class Transfers:
    """The exchanges of one owner, ended together by `close`. Safe to use from several threads."""

    _closed: threading.Event = field(default_factory=threading.Event)
    _exchanges: set[Exchange] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def close(self) -> None:
        """End waits and exchanges, here and now; everything after raises HubError. Idempotent."""
        self._closed.set()
        with self._lock:
            for exchange in self._exchanges:
                exchange.deadline = 0.0  # one not connected yet is caught by the watch as soon as it is

    def check(self) -> None:
        """Raise HubError if closed."""
        if self._closed.is_set():
            raise HubError("Reading from the Hub was stopped.")

    def wait(self, seconds: float) -> None:
        """Sleep, or raise HubError as soon as closed."""
        self._closed.wait(seconds)
        self.check()

    @contextmanager
    def send(
        self, method: str, url: httpx2.URL, headers: Mapping[str, str], *, seconds: float | None = None, whole: float | None = None
    ) -> Iterator[Exchange]:
        """Send a request without following redirects and hand out its reply, body unread. Closed on leaving.

        seconds: longest silence, and longest wait for the complete headers; by default HUB_TIMEOUT_SECONDS.
        whole: longest time for the reply with its body; by default the body is bounded by `body` alone.
        Raises Setback for what happens on the way, inside the ``with`` block too; HubError once closed.
        """
        self.check()
        seconds = limits.HUB_TIMEOUT_SECONDS if seconds is None else seconds
        now = time.monotonic()
        exchange = _watch.start(seconds, now + min(seconds, whole or seconds))
        with self._lock:
            self._exchanges.add(exchange)
        try:
            self.check()  # close() may have come before the exchange was listed
            request = httpx2.Request(method, url, headers=dict(headers), extensions=_extensions(exchange))
            response = get_session().send(request, stream=True, auth=None, follow_redirects=False)
            exchange.response = response
            _watch.saw(response.extensions["network_stream"])
            with self._lock:  # the headers are here: only `whole` counts now
                if not self._closed.is_set():
                    exchange.deadline = now + whole if whole is not None else float("inf")
            self.check()
            yield exchange
        except (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, OfflineModeIsEnabled, UnicodeError, OSError) as error:
            self.check()
            raise _setback(error, exchange) from None
        finally:
            if exchange.response is not None:
                exchange.response.close()
            with self._lock:
                self._exchanges.discard(exchange)
            _watch.end(exchange)

    def body(self, exchange: Exchange) -> Iterator[bytes]:
        """The reply's body, piece by piece. Raises Setback when it is slower than HUB_MIN_BYTES_PER_SECOND."""
        assert exchange.response is not None
        window = limits.HUB_TIMEOUT_SECONDS
        end, count = time.monotonic() + window, 0
        for piece in exchange.response.iter_raw():
            yield piece
            count += len(piece)
            now = time.monotonic()
            if now >= end:
                if count < limits.HUB_MIN_BYTES_PER_SECOND * window:
                    raise _too_slow()
                end, count = now + window, 0


class Patience:
    """How much failure one read puts up with: HUB_ATTEMPTS tries, HUB_WAIT_SECONDS of waiting, two slow replies."""

    def __init__(self, transfers: Transfers) -> None:
        self._transfers = transfers
        self._waited = 0.0
        self.progress()

    def progress(self) -> None:
        """The last try got on: count anew. The waiting is never forgotten."""
        self._failures = 0
        self._slow = 0

    def after(self, setback: Setback) -> None:
        """Wait until the next try is due, or raise the error that ends the read."""
        self._failures += 1
        self._slow += setback.slow
        if self._failures >= limits.HUB_ATTEMPTS or self._slow >= 2:
            raise setback.error from None
        wait = min(_BACKOFF_SECONDS * 2 ** (self._failures - 1), 4.0) if setback.wait is None else setback.wait
        if self._waited + wait > limits.HUB_WAIT_SECONDS:
            raise setback.error from None
        self._waited += wait
        self._transfers.wait(wait)


def _extensions(exchange: Exchange) -> dict[str, Any]:
    timeout = dict.fromkeys(("connect", "read", "write", "pool"), exchange.seconds)
    return {"timeout": timeout, "trace": _watch.trace}


def _too_slow() -> Setback:
    return Setback(HubUnreachable("The Hub answers too slowly to be of use; try again later."), slow=True)


def _setback(error: Exception, exchange: Exchange) -> Setback:
    if exchange.overdue or isinstance(error, httpx2.TimeoutException):
        return _too_slow()
    if isinstance(error, OfflineModeIsEnabled):
        return Setback(HubUnreachable("The Hub is not asked because offline mode is on; unset HF_HUB_OFFLINE to read from it."), slow=True)
    if isinstance(error, httpx2.InvalidURL | UnicodeError):
        return Setback(HubMisbehaved("The Hub points to an address that cannot be used."))
    cut = exchange.response is not None or "disconnected" in str(error)
    if isinstance(error, httpx2.ProtocolError) and not cut:
        return Setback(HubMisbehaved("The Hub, or something on the way to it, answers with what is not HTTP; try again later."))
    if cut:
        return Setback(HubUnreachable("The Hub breaks off its answers; try again later."))
    return Setback(HubUnreachable("The Hub cannot be reached; check the connection or try again later."))
