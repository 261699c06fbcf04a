"""Runs a long call in a thread and turns the progress it reports into a generator, which can be closed to cancel the call.

A function that a library calls back cannot yield, and the consumer of a generator cannot interrupt it.
"""

import queue
import threading
from collections.abc import Callable, Generator
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Cancelled(BaseException):
    """The generator was closed. Not an Exception: libraries would treat it as a failure of their own and continue."""


def call_in_thread(
    work: Callable[[Callable[[T], None]], R], *, silence: float | None = None, patience: float | None = None
) -> Generator[T, None, R]:
    """Call ``work(report)`` in a thread; yield each value passed to ``report``, return the result of ``work``, or raise its exception.

    silence: after this many seconds without a report, yield the last value again, so that the caller gets control. Closing the generator
    makes the next ``report`` raise `Cancelled`, and waits for ``work`` to end, at most ``patience`` seconds (None: no limit).
    """
    reports: queue.SimpleQueue[tuple[T] | None] = queue.SimpleQueue()
    results: list[R] = []
    failures: list[BaseException] = []
    cancelled = threading.Event()

    def report(value: T) -> None:
        if cancelled.is_set():
            raise Cancelled
        reports.put((value,))

    def run() -> None:
        try:
            results.append(work(report))
        except BaseException as failure:
            failures.append(failure)
        reports.put(None)

    thread = threading.Thread(target=run, name="watched", daemon=True)
    thread.start()
    last: tuple[T] | None = None
    try:
        while True:
            try:
                item = reports.get(timeout=silence)
            except queue.Empty:
                if last is None:
                    continue
                item = last
            if item is None:
                break
            last = item
            yield item[0]
    finally:
        cancelled.set()
        thread.join(patience)
    if failures:
        raise failures.pop()  # popped, as the exception would otherwise refer to itself through its traceback
    return results.pop()
