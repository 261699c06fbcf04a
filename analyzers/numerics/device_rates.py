"""Measures where this process counts faster, in about a tenth of a second."""

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Barrier
from time import perf_counter

import numpy as np

from analyzers import limits
from analyzers.numerics.accumulator import Accumulator
from analyzers.numerics.device import Device
from analyzers.numerics.stream_buffer import stream_buffer

_BYTES = 8 << 20  # As a chunk of a stream.
_SECONDS = 0.04  # For each device; preparing takes as long again.


@cache
def faster_device() -> Device:
    """Return the device that counts more bytes per second from this process's memory. Needs CUDA; measured once."""
    return "cuda" if bytes_per_second("cuda") > bytes_per_second("cpu") else "cpu"


def bytes_per_second(device: Device, seconds: float = _SECONDS) -> float:
    """Measure how many bytes of bf16 patterns in memory the threads of a stream count together; on a GPU that includes copying them."""
    threads = max(1, min(8, limits.cores()))
    ready = Barrier(threads, timeout=60)  # others do not wait for one that failed

    def count(_: int) -> float:
        values = np.random.default_rng(0).standard_normal(1 << 16, dtype=np.float32)
        codes = stream_buffer(_BYTES, device).view(np.uint16)
        codes[:] = np.resize(values.view(np.uint32) >> 16, codes.size)
        accumulator, rounds = Accumulator("BF16", device), 0
        accumulator.update(codes)
        accumulator.take()
        ready.wait()
        start = perf_counter()
        while (elapsed := perf_counter() - start) < seconds:
            accumulator.update(codes)
            accumulator.take()
            rounds += 1
        return rounds * codes.nbytes / elapsed

    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(count, range(threads)))
