"""Measures the counting of pairs in memory: ``python -m tests.benchmarks.pairs`` prints the rates as JSON."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .child import quantity, run
from .result import Result

THREADS = 2
CHUNK = 4 << 20  # bytes of the wider side, as in the streams
CHUNKS = 4
ROUNDS = 15

Codes = NDArray[Any]
Case = tuple[Codes, Codes, tuple[str, str]]

# Target bytes per second, both sides together.
TARGETS = {"bf16, 1 % changed": 5e9, "bf16, 30 % changed": 3e9, "fp32 and bf16": 1e9}


def pair_counting(folder: Path) -> Iterator[Result]:
    """Measure counts, magnitudes and steps of every pair on two threads, next to numpy in float32."""
    for name, rates in run(["-m", "tests.benchmarks.pairs"], folder=folder).json.items():
        target = TARGETS.get(name)
        text = f">= {_rate(target)}" if target else ""
        met = None if target is None else rates["ours"] >= target
        yield Result(f"pairs, {name}", _rate(rates["ours"]), _rate(rates["naive"]), rates["ours"] / rates["naive"], text, met)
        yield Result("  counts alone", _rate(rates["counts"]))
        yield Result("  one side's histogram, in the same seconds", _rate(rates["histogram"]))


def _rate(bytes_per_second: float) -> str:
    return quantity(bytes_per_second / 1e9, "GB/s")


def _cases() -> dict[str, Callable[[int], Case]]:
    """Return functions that make a fine-tune's chunk by number, with changes scattered at random."""

    def bf16_of(values: NDArray[np.float32]) -> NDArray[np.uint16]:
        patterns = values.view(np.uint32)
        return ((patterns + np.uint32(0x7FFF) + ((patterns >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)

    def weights(seed: int, count: int) -> tuple[NDArray[np.float32], np.random.Generator]:
        rng = np.random.default_rng(seed)
        return rng.standard_normal(count, dtype=np.float32) * np.float32(0.02), rng

    def moved(share: float) -> Callable[[int], Case]:
        def case(seed: int) -> Case:
            values, rng = weights(seed, CHUNK // 2)
            base = bf16_of(values)
            step = rng.choice(np.array([-3, -2, -1, -1, 1, 1, 2, 3], dtype=np.int16), base.size)
            return base, base + np.where(rng.random(base.size) < share, step, 0).astype(np.uint16), ("BF16", "BF16")

        return case

    def replaced(seed: int) -> Case:
        base, _, dtypes = moved(0)(seed)
        return base, np.random.default_rng(seed).permutation(base), dtypes

    def tuned(seed: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        values, rng = weights(seed, CHUNK // 4)
        update = values * np.float32(1e-3) * rng.standard_normal(values.size, dtype=np.float32)
        return values.view(np.uint32), (values + update).view(np.uint32)

    def mixed(seed: int) -> Case:
        base, after = tuned(seed)
        return base, bf16_of(after.view(np.float32)), ("F32", "BF16")

    return {
        "bf16, 1 % changed": moved(0.01),
        "bf16, 30 % changed": moved(0.3),
        "bf16, all replaced": replaced,
        "fp32 and bf16": mixed,
        "fp32": lambda seed: (*tuned(seed), ("F32", "F32")),
    }


def _naive(base: Codes, tuned: Codes, dtypes: tuple[str, str]) -> None:
    """Compute the numbers of a report in the usual way: whole arrays of float32, masks, and percentiles by sorting."""
    w, v = (
        (codes.astype(np.uint32) << np.uint32(16)).view(np.float32) if dtype == "BF16" else codes.view(np.float32)
        for codes, dtype in zip((base, tuned), dtypes, strict=True)
    )
    update = np.abs(v - w)
    relative = update / np.maximum(np.maximum(np.abs(w), np.abs(v)), np.float32(1e-30))
    rounded = [(values.view(np.uint32) + np.uint32(0x8000)) >> np.uint32(16) for values in (w, v)]
    changed = rounded[0] != rounded[1]
    (relative > 1e-3).sum()
    np.bincount(np.abs(rounded[0].astype(np.int32) - rounded[1].astype(np.int32)), minlength=65536)
    for values in (update, relative, update[changed], relative[changed]):
        values.mean(), values.std(), values.max(), np.percentile(values, [25, 50, 75, 90, 99])


def _seconds(chunks: list[Case], count: Callable[[Case], object]) -> float:
    """Measure the seconds of counting ``chunks`` on `THREADS` threads, each from its own memory, filled just before as by a read."""
    took: list[float] = []

    def work() -> None:
        room = [np.empty_like(side) for side in chunks[0][:2]]
        total = 0.0
        for base, tuned, dtypes in chunks:
            np.copyto(room[0], base)
            np.copyto(room[1], tuned)
            start = time.perf_counter()
            count((room[0], room[1], dtypes))
            total += time.perf_counter() - start
        took.append(total)

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(took) / THREADS


def _rates() -> dict[str, dict[str, float]]:
    """Measure bytes per second of each case and way, as the median of several rounds in which the ways alternate."""
    from analyzers.numerics import Accumulator, PairCounter, PairTables

    local = threading.local()

    def tables() -> PairTables:
        if not hasattr(local, "tables"):
            local.tables = PairTables()
        held: PairTables = local.tables
        return held

    def pairs(case: Case, with_tables: bool) -> None:
        counter = PairCounter(*case[2], 1e-3, tables() if with_tables else None)
        counter.update(case[0], case[1])
        counter.take()

    def histogram(case: Case) -> None:
        accumulator = Accumulator(case[2][1])
        accumulator.update(case[1])
        accumulator.take()

    ways: dict[str, tuple[Callable[[Case], object], int]] = {
        "ours": (lambda case: pairs(case, True), ROUNDS),
        "counts": (lambda case: pairs(case, False), ROUNDS),
        "histogram": (histogram, ROUNDS),
        "naive": (lambda case: _naive(*case), 1),
    }
    rates: dict[str, dict[str, float]] = {}
    for name, case in _cases().items():
        chunks = [case(seed) for seed in range(CHUNKS)]
        one = sum(tuned.nbytes for _, tuned, _ in chunks)
        both = one + sum(base.nbytes for base, _, _ in chunks)
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for turn in range(ROUNDS + 1):
            for way, (count, rounds) in ways.items():
                if turn <= rounds:
                    seconds[way].append(_seconds(chunks if way != "naive" else chunks[:1], count))
        rates[name] = {way: THREADS * (one if way == "histogram" else both) / median(each[1:]) for way, each in seconds.items()}
        rates[name]["naive"] /= CHUNKS
    return rates


if __name__ == "__main__":
    print(json.dumps(_rates()))
