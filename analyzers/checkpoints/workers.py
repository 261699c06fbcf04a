"""Threads that work through a list, results as they come: stopped within moments, errors raised where the results go."""

import queue
import threading
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

S = TypeVar("S")
T = TypeVar("T")

# Seconds between signs of life while a read takes long: the consumer can show progress, or cancel.
HEARTBEAT = 0.2


class Stopped(Exception):
    """The consumer has gone. Raised by work that finds its stop event set; never seen by the consumer."""


class Tally:
    """Bytes and reads, counted by several threads."""

    def __init__(self) -> None:
        self.bytes = 0
        self.requests = 0
        self._lock = threading.Lock()

    def add(self, size: int, requests: int) -> None:
        """Take in ``size`` bytes that took ``requests`` reads."""
        with self._lock:
            self.bytes += size
            self.requests += requests


def work_through(
    items: Sequence[S], threads: int, worker: Callable[[], Callable[[S], T]], stop: threading.Event, cancel: Callable[[], None]
) -> Generator[tuple[S, T] | None, None, None]:
    """Yield (item, result) of each of ``items`` as it is finished, in no particular order, and None every HEARTBEAT seconds.

    worker: called once by each of the ``threads``, returns what that thread does with an item. An error of either is raised
    here. However the generator ends, ``stop`` is set and every thread has ended; unless everything was finished, ``cancel`` is
    called in between, to wake threads that wait for something.
    """
    waiting: queue.SimpleQueue[S] = queue.SimpleQueue()
    for item in items:
        waiting.put(item)
    done: queue.SimpleQueue[tuple[S, T] | BaseException] = queue.SimpleQueue()

    def run() -> None:
        try:
            work = worker()
            while not stop.is_set():
                try:
                    item = waiting.get_nowait()
                except queue.Empty:
                    return
                done.put((item, work(item)))
        except Stopped:
            pass
        except BaseException as error:  # whatever it is belongs to the consumer
            done.put(error)

    pool = [threading.Thread(target=run, name=f"stream-{i}", daemon=True) for i in range(threads)]
    for thread in pool:
        thread.start()
    finished = False
    try:
        for _ in range(len(items)):
            while True:
                try:
                    found = done.get(timeout=HEARTBEAT)
                    break
                except queue.Empty:
                    yield None
            if isinstance(found, BaseException):
                raise found
            yield found
        finished = True
    finally:
        stop.set()
        if not finished:
            cancel()
        for thread in pool:
            thread.join()
