"""Measures peak memory on a CPU or a GPU."""

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch


@contextmanager
def peak_memory(device: str) -> Iterator[Callable[[], int]]:
    """Yield a function that returns the peak bytes since the start, minus those in use at the start.

    device: "cpu" for the kernel's count of this process, whose earlier peak must be lower; "cuda" for torch's tensors.
    """
    if device == "cuda":
        start = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        yield lambda: torch.cuda.max_memory_allocated() - start
        return
    before = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    yield lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
