"""Measures exact mode on local files in the page cache: throughput, next to loading the model, and memory."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .child import Runs, quantity, repeat, run
from .model_files import LAYERS, make
from .result import Result

RUNS = 5
NAIVE_RUNS = 3
CORES = 2
TIMES_FASTER = 4.0
MEMORY = 500e6
BF16_RATE, F32_RATE = 3e9, 2.5e9  # bytes per second

# Layers of the larger model for the comparison of memory, with four times the bytes including embeddings.
LARGER_LAYERS = 4 * LAYERS + 9


def local_exact(folder: Path) -> Iterator[Result]:
    """Measure throughput on bf16 (next to the naive way) and on three kinds of fp32, and memory at four times the size."""
    with _cores(CORES):
        checkpoint = make(folder / "bf16")
        ours = repeat(RUNS, _exact(checkpoint))
        naive = repeat(NAIVE_RUNS, ["-m", "tests.benchmarks.naive_load", str(checkpoint)], variables={"HF_HUB_OFFLINE": "1"})
        yield from _throughput("bf16", ours, BF16_RATE)
        ratio = naive.seconds / ours.seconds
        yield Result("  whole command", str(ours), str(naive), ratio, f">= {TIMES_FASTER:.0f}", ratio >= TIMES_FASTER)
        naive_work, our_work = naive.median("seconds"), _seconds(ours)
        yield Result("  without imports", quantity(our_work, "s"), quantity(naive_work, "s"), naive_work / our_work)
        small, whole = ours.peak_bytes, naive.peak_bytes
        yield Result("  peak memory", _mb(small), _mb(whole), whole / small, f"< {_mb(MEMORY)}", small < MEMORY)
        shutil.rmtree(checkpoint)

        checkpoint = make(folder / "larger", LARGER_LAYERS)
        large = run(_exact(checkpoint)).peak_bytes
        size = sum(path.stat().st_size for path in checkpoint.iterdir())
        shutil.rmtree(checkpoint)
        same = abs(large / small - 1) <= 0.1
        yield Result(f"  peak memory at {size / 1e9:.1f} GB", _mb(large), "", None, f"within 10 % of {_mb(small)}", same)

        for lineage in ("fp32", "bf16-as-fp32", "fp16-as-fp32"):
            checkpoint = make(folder / lineage, LAYERS // 2 - 1, lineage)
            yield from _throughput(lineage, repeat(RUNS, _exact(checkpoint)), F32_RATE)
            shutil.rmtree(checkpoint)


def _exact(checkpoint: Path) -> list[str]:
    return ["-m", "analyzers", "dtype", str(checkpoint), "--exact", "--json"]


def _throughput(lineage: str, runs: Runs, target: float) -> Iterator[Result]:
    rates = sorted(run.json["timing"]["bytes_per_second"] for run in runs.each)
    nbytes = runs.each[0].json["bytes_read"]
    median, best = rates[len(rates) // 2], rates[-1]
    name = f"exact, local, {lineage}, {nbytes / 1e9:.1f} GB"
    yield Result(name, f"{_rate(median)} (best {_rate(best)})", "", None, f">= {_rate(target)}", median >= target)
    yield Result("  imports and start included", _rate(nbytes / runs.seconds))


def _seconds(runs: Runs) -> float:
    seconds = sorted(run.json["timing"]["seconds"] for run in runs.each)
    return float(seconds[len(seconds) // 2])


def _rate(bytes_per_second: float) -> str:
    return quantity(bytes_per_second / 1e9, "GB/s")


def _mb(nbytes: float) -> str:
    return f"{nbytes / 1e6:,.0f} MB"


@contextmanager
def _cores(count: int) -> Iterator[None]:
    """Confine this process and its children to ``count`` cores, if the system supports it."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
