"""Calls that take long: what they tell on their way, and a way out of them.

A function that a library calls cannot yield, and what runs a generator cannot interrupt it: so the call has a thread of its own.
"""

import queue
import threading
from collections.abc import Callable, Generator
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Left(BaseException):
    """Nobody waits for the work any more. No Exception: libraries would take it for a failure of theirs, and go on."""


def watched(
    work: Callable[[Callable[[T], None]], R], *, silence: float | None = None, patience: float | None = None
) -> Generator[T, None, R]:
    """Yields what ``work`` tells by calling what it is given; returns what it returns, and raises what it raises.

    silence: after so many seconds without a word the last one is yielded again, so that the caller has a turn. Closing the generator makes
    the next telling raise `Left` in ``work``, and waits for its end, for ``patience`` seconds at most (None: for as long as it takes).
    """
    told: queue.SimpleQueue[tuple[T] | None] = queue.SimpleQueue()
    results: list[R] = []
    failures: list[BaseException] = []
    left = threading.Event()

    def tell(said: T) -> None:
        if left.is_set():
            raise Left
        told.put((said,))

    def run() -> None:
        try:
            results.append(work(tell))
        except BaseException as failure:
            failures.append(failure)
        told.put(None)

    thread = threading.Thread(target=run, name="watched", daemon=True)
    thread.start()
    last: tuple[T] | None = None
    try:
        while True:
            try:
                said = told.get(timeout=silence)
            except queue.Empty:
                said = last
                if said is None:
                    continue
            if said is None:
                break
            last = said
            yield said[0]
    finally:
        left.set()
        thread.join(patience)
    if failures:
        raise failures.pop()  # which would otherwise be held by what it holds
    return results.pop()
