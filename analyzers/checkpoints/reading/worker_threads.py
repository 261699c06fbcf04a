"""Runs a pool of threads that yields results as they are finished, stops at once, and raises errors in the consumer.

Not `concurrent.futures`: the interpreter would wait at its end for a thread that still waits for the network.
"""

import queue
import threading
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

S = TypeVar("S")
T = TypeVar("T")

# Seconds between empty results during a long read, so that the consumer can show progress or cancel.
HEARTBEAT = 0.2


class Stopped(Exception):
    """The consumer has stopped. Raised by work whose stop event is set; never reaches the consumer."""


def work_through(
    items: Sequence[S],
    threads: int,
    worker: Callable[[], Callable[[S], T]],
    stop: threading.Event,
    cancel: Callable[[], None] = lambda: None,
    patience: float | None = None,
) -> Generator[tuple[S, T] | None, None, None]:
    """Yield (item, result) of each of ``items`` as it is finished, in no particular order, and None every HEARTBEAT seconds.

    worker: called once in each of the ``threads``; returns the function that this thread applies to items. Errors of both are raised in the
    consumer. However the generator ends, ``stop`` is set and every thread has ended, or was given ``patience`` seconds to end; unless all
    items were finished, ``cancel`` is called first, to wake waiting threads.
    """
    waiting: queue.SimpleQueue[S | None] = queue.SimpleQueue()
    for item in (*items, *[None] * threads):  # None ends a thread
        waiting.put(item)
    done: queue.SimpleQueue[tuple[S, T] | BaseException] = queue.SimpleQueue()
    missing = len(items)

    def run() -> None:
        try:
            work = worker()
            for item in iter(waiting.get, None):
                if stop.is_set():
                    return
                done.put((item, work(item)))
        except Stopped:
            pass
        except BaseException as error:  # re-raised in the consumer
            done.put(error)

    pool = [threading.Thread(target=run, name=f"stream-{i}", daemon=True) for i in range(threads)]
    for thread in pool:
        thread.start()
    try:
        while missing:
            try:
                found = done.get(timeout=HEARTBEAT)
            except queue.Empty:
                yield None
                continue
            if isinstance(found, BaseException):
                raise found
            missing -= 1
            yield found
    finally:
        stop.set()
        if missing:
            cancel()
        for thread in pool:
            thread.join(patience)
