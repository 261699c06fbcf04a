"""Measures the start of the command line on a built-in sample."""

from collections.abc import Iterator
from pathlib import Path

from .child import ROOT, repeat
from .result import Result

RUNS = 9
NAIVE_RUNS = 3
SAMPLE = "tiny-bf16-as-fp32"
SECONDS = 1.5


def sample_start(folder: Path) -> Iterator[Result]:
    """Measure the whole process, next to one that loads the same sample as a model."""
    ours = repeat(RUNS, ["-m", "analyzers", "dtype", f"sample:{SAMPLE}"], folder=folder)
    sample = ROOT / "analyzers" / "language_models" / "samples" / SAMPLE
    naive = repeat(NAIVE_RUNS, ["-m", "tests.benchmarks.naive_load", str(sample)], variables={"HF_HUB_OFFLINE": "1"})
    ratio = naive.seconds / ours.seconds
    yield Result(f"sample:{SAMPLE}, whole process", str(ours), str(naive), ratio, f"< {SECONDS} s", ours.seconds < SECONDS)
    yield Result("  peak memory", f"{ours.peak_bytes / 1e6:.0f} MB", f"{naive.peak_bytes / 1e6:.0f} MB", naive.peak_bytes / ours.peak_bytes)
