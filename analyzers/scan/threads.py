"""The engine of a scan in one process: a few threads, each scanning one checkpoint at a time."""

import queue
from collections.abc import Iterator, Sequence
from threading import Event, Thread

from analyzers.scan.journal import Outcome
from analyzers.scan.work import Stopped, Task

# Interval of drawing progress while no checkpoint is finished.
_TICK_SECONDS = 0.5


def scan_in_threads(task: Task, keys: Sequence[str], jobs: int) -> Iterator[Outcome | None]:
    """Scan ``keys`` in ``jobs`` threads; yields finished checkpoints, in any order, and None at least every half second.

    Closing it stops the threads at their next chunk. They are daemons: an interrupted process does not wait for the network.
    """
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    finished: queue.SimpleQueue[Outcome | BaseException] = queue.SimpleQueue()
    stopping = Event()
    for key in keys:
        waiting.put(key)

    def work() -> None:
        try:
            while not stopping.is_set():
                finished.put(task.scan(waiting.get_nowait(), stopping.is_set))
        except (queue.Empty, Stopped):
            pass
        except BaseException as error:
            finished.put(error)

    for _ in range(min(jobs, len(keys))):
        Thread(target=work, name="scan", daemon=True).start()
    missing = len(keys)
    try:
        while missing:
            try:
                done = finished.get(timeout=_TICK_SECONDS)
            except queue.Empty:
                yield None
                continue
            if isinstance(done, BaseException):
                raise done
            missing -= 1
            yield done
    finally:
        stopping.set()
