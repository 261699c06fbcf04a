"""Queue limits per kind of job, and each client's share of them.

A job runs once it has a slot. A call whose results nobody reads gets none, and ends after `limits.READER_SECONDS`, so abandoned calls delay
nobody. Gradio's own queue only passes calls on: it counts all kinds together and does not distinguish clients.
"""

import threading
import time
from collections import Counter, deque
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import gradio as gr

from analyzers.checkpoints import Access
from analyzers.core import limits
from analyzers.core.errors import LimitExceeded
from analyzers.core.request import Progress
from components.running.gradio_internals import drop_sessions, idle_sessions, waiting
from components.site.identity import Client

# Multiples of limits.QUEUE: waiting calls of one quick endpoint; of all endpoints together, which are held in memory; unread calls.
_QUICK, _ALL, _UNREAD = 4, 16, 2
# Multiple of limits.JOBS: concurrent calls of one quick endpoint. Several, since Gradio starts calls only 20 times a second.
_AT_ONCE = 4
# A visitor may have a quarter of the waiting jobs and half of the slots; an address, twice as many waiting and all slots but one.
_SHARE_WAITING, _SHARE_RUNNING = 4, 2
_POLL_SECONDS = 1.0
KEPT_SECONDS = 600  # Finished calls whose results nobody reads are kept for this long, and for at most twice as long while calls are made.

RESTARTING = "The app is restarting: try again later."
UNREAD = "Stopped: nobody was reading the results of this analysis."


class Caller(NamedTuple):
    """The caller that waits for a job. session: of the stream with the results; access: what may be read for this job only."""

    client: Client
    session: str
    access: Access = Access()


# A script that calls `job` itself reads its results.
LOCAL = Caller(Client("", ""), "")
caller: ContextVar[Caller] = ContextVar("caller", default=LOCAL)

_changed = threading.Condition()
_streams: Counter[str] = Counter()
_closing: list[bool] = []


class Slot:
    """A job in a queue: first waiting, then running, until it is released."""

    def __init__(self, jobs: "JobQueue", who: Caller) -> None:
        self._jobs = jobs
        self._read_at = time.monotonic()
        self.who = who
        self.running = False
        self.dropped = False

    def is_read(self) -> bool:
        """Return whether a client is reading the results."""
        return self.who == LOCAL or is_read(self.who.session)

    def check(self) -> None:
        """Raise LimitExceeded if the job must end: nobody reads its results, or the app is shutting down."""
        if _closing:
            raise LimitExceeded(RESTARTING)
        now = time.monotonic()
        if self.is_read():
            self._read_at = now
        elif self.dropped or now - self._read_at > limits.READER_SECONDS:
            raise LimitExceeded(UNREAD)

    def release(self) -> None:
        """Leave the queue. Idempotent."""
        with _changed:
            if self in self._jobs.slots:
                self._jobs.slots.remove(self)
                _changed.notify_all()


class JobQueue:
    """The jobs of one kind. name: Gradio's concurrency id; limit: most that run at once. Thread-safe."""

    def __init__(self, name: str, limit: int) -> None:
        self.name = name
        self.limit = limit
        self.slots: list[Slot] = []
        self._accepted: deque[tuple[float, Client]] = deque(maxlen=4 * limits.QUEUE)

    def accepts(self, client: Client) -> bool:
        """Return whether another job of this client may wait. It counts for a second, and then while its results are read."""
        now, share = time.monotonic(), max(1, limits.QUEUE // _SHARE_WAITING)
        with _changed:
            waiting = [slot.who.client for slot in self.slots if not slot.running and slot.is_read()]
            held = waiting + [who for when, who in self._accepted if now - when < 1]
            accepted = (
                len(waiting) < limits.QUEUE
                and held.count(client) < share
                and [each.address for each in held].count(client.address) < 2 * share
            )
            if accepted:
                self._accepted.append((now, client))
        return accepted

    def slot(self, who: Caller) -> Generator[Progress, None, Slot]:
        """Yield progress until it is this job's turn, and return its slot, to be released. Raises LimitExceeded as `Slot.check` does."""
        slot = Slot(self, who)
        with _changed:
            self.slots.append(slot)
            self._drop_unread(who.client)
        try:
            while not self._started(slot):
                slot.check()
                if slot.is_read():
                    yield Progress(done=0, total=0, unit="turns", note="Waiting for other analyses to finish")
        except BaseException:
            slot.release()
            raise
        return slot

    def _started(self, slot: Slot) -> bool:
        with _changed:
            _changed.wait_for(lambda: _closing or slot.dropped or self._next() is slot, _POLL_SECONDS)
            slot.running = not _closing and self._next() is slot
            return slot.running

    def _next(self) -> Slot | None:
        """Return the job that may start now: the oldest of the client with the fewest running jobs."""
        running = Counter(slot.who.client for slot in self.slots if slot.running)
        if running.total() >= self.limit:
            return None
        addresses = Counter(slot.who.client.address for slot in self.slots if slot.running and slot.who != LOCAL)
        share, together = max(1, self.limit // _SHARE_RUNNING), max(1, self.limit - 1)
        waiting = [
            slot
            for slot in self.slots
            if not slot.running and slot.is_read() and running[slot.who.client] < share and addresses[slot.who.client.address] < together
        ]
        return min(waiting, key=lambda slot: running[slot.who.client], default=None)

    def _drop_unread(self, client: Client) -> None:
        """End the oldest unread jobs beyond their client's share and beyond the total limit."""
        unread = [slot for slot in self.slots if not slot.running and not slot.dropped and not slot.is_read()]
        own = [slot for slot in unread if slot.who.client == client]
        for slot in {*own[: -max(1, limits.QUEUE // _SHARE_WAITING)], *unread[: -_UNREAD * limits.QUEUE]}:
            slot.dropped = True
            _changed.notify_all()


READING = JobQueue("analysis", limits.JOBS)
MODELS = JobQueue("model", limits.MODEL_JOBS)
SAMPLES = JobQueue("sample", max(2, limits.JOBS // 2))
# Requests to the Hub that find stored results: quick, unless the Hub is slow.
LOOKUPS = JobQueue("lookup", 4 * limits.JOBS)
# Copies of weights that wait on the disk to be uploaded: one for a visitor, and of at most PULL_REQUEST_BYTES each.
COPIES = JobQueue("copy", 2)
_QUEUES = {queue.name: queue for queue in (READING, MODELS, SAMPLES, LOOKUPS, COPIES)}


@contextmanager
def reading(session: str) -> Iterator[None]:
    """Count a client as reading the results of a session inside the context."""
    with _changed:
        _streams[session] += 1
        _changed.notify_all()
    try:
        yield
    finally:
        with _changed:
            _streams[session] -= 1
            if not _streams[session]:
                del _streams[session]


def is_read(session: str) -> bool:
    """Return whether a client is reading the results of a session."""
    return _streams[session] > 0


class UnreadResults:
    """Drops the sessions of ``app`` that were idle and unread for KEPT_SECONDS. To be used on the event loop only."""

    def __init__(self, app: gr.Blocks) -> None:
        self._app = app
        self._idle: dict[str, frozenset[str]] = {}
        self._looked_at = time.monotonic()

    def drop(self) -> None:
        """Drop the sessions that were already idle, with the same unread calls, at the last look KEPT_SECONDS or longer ago."""
        now = time.monotonic()
        if now - self._looked_at < KEPT_SECONDS:
            return
        idle = {session: calls for session, calls in idle_sessions(self._app).items() if not is_read(session)}
        drop_sessions(self._app, [session for session, calls in idle.items() if self._idle.get(session) == calls])
        self._idle, self._looked_at = idle, now


def is_closing() -> bool:
    """Return whether the app is shutting down."""
    return bool(_closing)


def end_jobs(seconds: float) -> bool:
    """End all jobs, each with a sentence, and accept no more. Waits at most ``seconds`` for them; returns whether all have ended."""
    with _changed:
        _closing.append(True)
        _changed.notify_all()
        return _changed.wait_for(lambda: not any(queue.slots for queue in _QUEUES.values()), seconds)


def accepts(app: gr.Blocks, endpoint: int, client: Client) -> bool:
    """Return whether a client may make another call of this endpoint (its index in ``app.fns``)."""
    kind = app.fns[endpoint].concurrency_id
    if (queue := _QUEUES.get(kind)) is not None:
        return queue.accepts(client)
    return waiting(app, kind) < _QUICK * limits.QUEUE


def limit_queue(app: gr.Blocks) -> None:
    """Set Gradio's default concurrency of endpoints and its total queue length. No call skips the queue."""
    app.queue(max_size=_ALL * limits.QUEUE, default_concurrency_limit=_AT_ONCE * limits.JOBS, api_open=False)
