"""Keeps runs whose reader has left for a moment, so that a visitor who reloads the page joins the run again."""

import threading
import time
from collections import deque
from collections.abc import Generator
from typing import Any, NamedTuple

from analyzers.core import limits
from analyzers.core.request import Request
from components.running.queue_limits import LOCAL, Caller, Slot, is_closing
from components.site.identity import Client

_LOOK_SECONDS = 0.5


class Run(NamedTuple):
    """A running analysis and its slot. started: `time.monotonic`."""

    slot: Slot
    work: Generator[Any, None, None]
    started: float

    def close(self) -> None:
        """End the analysis and leave the queue. Idempotent."""
        self.work.close()
        self.slot.release()


# A run that reads with a token can be joined only with the same token.
_Token = str | bool | None
_lock = threading.Lock()
_kept: dict[tuple[Client, _Token, Request], Run] = {}
# Sessions in which Stop was pressed: the event may arrive before or after the run is closed.
_stopped: deque[str] = deque(maxlen=limits.SESSIONS)


def keep(request: Request, run: Run) -> None:
    """Keep an unfinished run of ``request`` for READER_SECONDS, so that the same client may `join` it. After `stop`, end it at once."""
    who = run.slot.who
    key = who.client, who.access.token, request
    with _lock:
        ends = who == LOCAL or who.session in _stopped or key in _kept
        if not ends:
            _kept[key] = run
    if ends:
        run.close()
    else:
        threading.Thread(target=_end_later, args=(key, run), name="interrupted", daemon=True).start()


def join(request: Request, who: Caller) -> Run | None:
    """Return the unfinished run of the same client and request, with ``who`` as its reader from now on; None if there is none."""
    with _lock:
        if who.session in _stopped:
            _stopped.remove(who.session)
        run = _kept.pop((who.client, who.access.token, request), None)
    if run is not None:
        run.slot.who = who
    return run


def stop(session: str) -> None:
    """End the run that this session has left, or will leave next."""
    with _lock:
        _stopped.append(session)
        left = [key for key, run in _kept.items() if run.slot.who.session == session]
        runs = [_kept.pop(key) for key in left]
    for run in runs:
        run.close()


def _end_later(key: tuple[Client, _Token, Request], run: Run) -> None:
    until = time.monotonic() + limits.READER_SECONDS
    while time.monotonic() < until and not is_closing():
        time.sleep(_LOOK_SECONDS)
    with _lock:
        ends = _kept.get(key) is run
        if ends:
            del _kept[key]
    if ends:
        run.close()
