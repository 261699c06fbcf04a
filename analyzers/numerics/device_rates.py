"""Measures where this process counts faster, in about a tenth of a second."""

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Barrier
from time import perf_counter
from typing import Literal

import numpy as np

from analyzers.core import limits
from analyzers.numerics.accumulator import Accumulator
from analyzers.numerics.pair_statistics import PairTables
from analyzers.numerics.pairs import PairCounter
from analyzers.numerics.stream_buffer import stream_buffer

_BYTES = 8 << 20  # As a chunk of a stream.
_SECONDS = 0.04  # For each device; preparing takes as long again.


@cache
def faster_device(pairs: bool) -> Literal["cpu", "cuda"]:
    """Return the device that counts more bytes per second from this process's memory. Needs CUDA; measured once.

    pairs: whether values are compared in pairs.
    """
    return "cuda" if bytes_per_second("cuda", pairs) > bytes_per_second("cpu", pairs) else "cpu"


def bytes_per_second(device: str, pairs: bool, seconds: float = _SECONDS) -> float:
    """Measure how many bytes of bf16 patterns in memory the threads of a stream count together; on a GPU that includes copying them.

    pairs: of two checkpoints of which almost all values differ, the slowest to count on a CPU.
    """
    threads = max(1, min(8, limits.cores()))
    ready = Barrier(threads, timeout=60)  # others do not wait for one that failed

    def count(_: int) -> float:
        generator = np.random.default_rng(0)
        values = generator.standard_normal(1 << 16, dtype=np.float32)
        sides = stream_buffer(_BYTES, device).view(np.uint16).reshape(1 + pairs, -1)
        for codes in sides:
            codes[:] = np.resize(values.view(np.uint32) >> 16, codes.size)
            values += generator.standard_normal(1 << 16, dtype=np.float32) / 16
        counter = PairCounter("BF16", "BF16", 1e-3, PairTables(), device) if pairs else Accumulator("BF16", device)

        def rate(seconds: float) -> float:
            start, rounds, elapsed = perf_counter(), 0, 0.0
            while not rounds or elapsed < seconds:
                counter.update(*sides)
                counter.take()
                rounds, elapsed = rounds + 1, perf_counter() - start
            return rounds * sides.nbytes / elapsed

        rate(0)  # prepares
        ready.wait()
        return rate(seconds)

    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(count, range(threads)))
