"""Calls functions at deadlines, all from one thread: starting a timer's thread costs as much as a small read."""

import heapq
import os
import threading
import time
from collections.abc import Callable
from itertools import count


class Deadline:
    """A call to come, unless it is cancelled before."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        """Do not call. Idempotent; a call that has begun goes on."""
        self.call = None


class Deadlines:
    """Pending deadlines, soonest first, and their thread, which ends when the last is over."""

    def __init__(self) -> None:
        self._pending: list[tuple[float, int, Deadline]] = []
        self._numbers = count()  # decide between equal times
        self._changed = threading.Condition()
        self._watched = False

    def call_after(self, seconds: float, call: Callable[[], None]) -> Deadline:
        """Call a function after some seconds, from another thread; it must return at once and not raise."""
        deadline = Deadline(call)
        with self._changed:
            entry = time.monotonic() + seconds, next(self._numbers), deadline
            heapq.heappush(self._pending, entry)
            if not self._watched:
                threading.Thread(target=self._watch, name="deadlines", daemon=True).start()
                self._watched = True
            elif self._pending[0] is entry:
                self._changed.notify()
        return deadline

    def _watch(self) -> None:
        while (due := self._next()) is not None:
            if (call := due.call) is not None:
                call()

    def _next(self) -> Deadline | None:
        """Wait for the soonest deadline and remove it; None if there is none."""
        with self._changed:
            while self._pending:
                if self._pending[0][2].call is None or (left := self._pending[0][0] - time.monotonic()) <= 0:
                    return heapq.heappop(self._pending)[2]
                self._changed.wait(left)
            self._watched = False
            return None


_deadlines = Deadlines()


def _begin_again() -> None:
    global _deadlines
    _deadlines = Deadlines()


os.register_at_fork(after_in_child=_begin_again)  # a child has no such thread


def call_after(seconds: float, call: Callable[[], None]) -> Deadline:
    """Call a function as `Deadlines.call_after` does, from the thread that all of this process share."""
    return _deadlines.call_after(seconds, call)
