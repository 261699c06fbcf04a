"""Times work in this process, on a CPU or a GPU."""

import time
from collections.abc import Callable
from typing import Any


def timed(
    work: Callable[[], Any], device: str, rounds: int = 2, clock: Callable[[], float] = time.perf_counter
) -> tuple[Any, dict[str, float]]:
    """Do the work ``rounds`` times. Returns the result, and of the last round ``seconds`` and, on a GPU, the ``peak_bytes`` allocated."""
    import torch

    result, seconds, held = None, 0.0, 0
    for _ in range(rounds):
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            held = torch.cuda.memory_allocated()
            torch.cuda.synchronize()
        start = clock()
        result = work()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds = clock() - start
    peak = {"peak_bytes": torch.cuda.max_memory_allocated() - held} if device == "cuda" else {}
    return result, {"seconds": seconds, **peak}


def timed_passes(work: Callable[[], Any], device: str) -> tuple[Any, dict[str, float]]:
    """Do work that runs a model: on a CPU once, since it takes long, by the processor's clock."""
    return timed(work, device, 1 if device == "cpu" else 2, clock(device))


def clock(device: str) -> Callable[[], float]:
    """Return the processor's clock on a CPU, where other programs run too."""
    return time.process_time if device == "cpu" else time.perf_counter
