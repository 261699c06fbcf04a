"""Work on many small pieces: on a processor each on a thread of its own that multiplies alone, on a GPU one after the other.

Matrix products that share the cores among themselves wait for one another at every product; pieces of a few MB, which stay in the cache of
one core, take two thirds of the time, and far less where others use the cores too. What comes out does not depend on the number of threads.
"""

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from threading import Barrier
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")


def side_by_side(work: Callable[[T], R], pieces: Sequence[T], device: torch.device, most: int) -> Generator[R, None, None]:
    """``work`` of each of ``pieces``, in their order; at most ``most`` at once. Closing it leaves out those that did not begin."""
    threads = torch.get_num_threads()
    if threads == 1 or not apart(device, most):
        yield from map(work, pieces)
        return
    pool, results = _pool(threads), []
    waiting = iter(pieces)

    def begin() -> None:
        for piece in waiting:
            results.append(pool.submit(_without_gradients, work, piece))
            return

    try:
        for _ in range(max(1, most)):
            begin()
        while results:
            found = results.pop(0).result()
            begin()
            yield found
    finally:
        for each in results:
            each.cancel()


def apart(device: torch.device, most: int) -> bool:
    """Whether pieces, of which ``most`` may be worked on at once, have a core each; otherwise cores had better share each product."""
    threads = torch.get_num_threads()
    return device.type == "cpu" and (threads == 1 or (most >= 2 and 2 * most >= threads))


def shares(rows: int, device: torch.device) -> list[slice]:
    """As many rows for each thread, for `side_by_side` work that goes over them once; on a GPU all of them."""
    number = max(1, min(rows, torch.get_num_threads())) if device.type == "cpu" else 1
    ends = [rows * part // number for part in range(number + 1)]
    return [slice(*each) for each in pairwise(ends)]


def _without_gradients(work: Callable[[T], R], piece: T) -> R:
    with torch.no_grad():  # a thread's own setting
        return work(piece)


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """So many threads, of which each uses one core. They stay for the life of the process."""
    started = Barrier(threads + 1)

    def alone() -> None:
        torch.get_num_threads()  # takes over what the process has, which happens once: later it would undo the next line
        torch.set_num_threads(1)
        started.wait()

    pool = ThreadPoolExecutor(threads, "grams", initializer=alone)
    for _ in range(threads):  # none is idle before all have started, so that each call starts one
        pool.submit(int)
    started.wait()
    torch.set_num_threads(threads)  # new threads of others take over what was set last
    return pool
