"""Measures time and memory of shrinking a local checkpoint in the page cache, next to ``cp``, and of checking it."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from .child import Run, quantity, run
from .model_files import LAYERS, make
from .result import Result

RUNS = 3
SHARE = 0.5  # target share of the rate of cp
MEMORY = 500e6


def shrink(folder: Path) -> Iterator[Result]:
    """Measure the rate of bytes read (the source twice and the result once) relative to ``cp``; then check."""
    source = make(folder / "wide", LAYERS // 2 - 1, "bf16-as-fp32")
    out, copy = folder / "out", folder / "copy"
    copied, runs = [], list[Run]()
    for _ in range(RUNS):
        start = time.perf_counter()
        shutil.copytree(source, copy)
        copied.append(time.perf_counter() - start)
        shutil.rmtree(copy)
        runs.append(run(["-m", "analyzers", "shrink", str(source), "--out", str(out), "--json"]))
        shutil.rmtree(out)
    report = runs[0].json
    before, after = report["bytes_before"], report["bytes_after"]
    seconds, cp = median(each.seconds for each in runs), median(copied)
    rate, of_cp = (2 * before + after) / seconds, before / cp
    ratio, target = rate / of_cp, f">= {SHARE}"
    said, naive = f"{rate / 1e9:.2f} GB/s", f"{of_cp / 1e9:.2f} GB/s"
    yield Result(f"shrink, {before / 1e9:.1f} GB of fp32, read", said, f"cp: {naive}", ratio, target, ratio >= SHARE)
    yield Result("  whole command", quantity(seconds, "s"), f"cp: {quantity(cp, 's')}", cp / seconds)
    yield from _memory(max(each.peak_bytes for each in runs))
    found = run(["-m", "analyzers", "check", str(source), "--json"])
    right = found.json["saving_bytes"] == before - after
    yield Result(f"check, {before / 1e9:.1f} GB of fp32", quantity(found.seconds, "s"), "", None, "saves what shrink does", right)
    yield from _memory(found.peak_bytes)


def _memory(peak: int) -> Iterator[Result]:
    yield Result("  peak memory", quantity(peak / 1e6, "MB"), "", None, f"< {MEMORY / 1e6:.0f} MB", peak < MEMORY)
