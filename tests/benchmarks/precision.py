"""Measures precision variants of Llamas of 8 layers on 4 sequences of 256 tokens, relative to the plain passes they consist of."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path

from .child import quantity, run
from .result import Result

TIMES_PLAIN = 1.5
RUNS = 3
SAMPLE_SECONDS = 30


def precision(folder: Path) -> Iterator[Result]:
    """Measure the time of a reference with three variants in bf16, and with one in fp16, with trials of loss scales; memory; a sample."""
    for shape, way in product(("narrow", "wide"), ("bf16", "fp16")):
        found = run(["-m", "tests.benchmarks.precision_ways", way, shape], timeout=1800).json
        passes, ratio = sum(found["counts"].values()), found["ratio"]
        plain, target = f"{quantity(found['passes'], 's')} plain", f"<= {TIMES_PLAIN} times"
        name = f"precision, {way}, width {found['width']}, {passes} passes"
        yield Result(
            name,
            quantity(found["seconds"], "s"),
            plain,
            1 / ratio,
            target,
            ratio <= TIMES_PLAIN,
        )
        yield Result("  times the plain passes", f"{ratio:.2f} (min {found['least']:.2f})")
    ways = {way: max(run(["-m", "tests.benchmarks.precision_ways", way]).json["bytes"] for _ in range(RUNS)) for way in ("ours", "naive")}
    ratio = ways["naive"] / ways["ours"]
    ours, naive = (quantity(ways[way] / 1e6, "MB") for way in ("ours", "naive"))
    yield Result("  memory in addition to the model, bf16", ours, naive, ratio, "< naive", ratio > 1)
    whole = [run(["-m", "analyzers", "precision", "sample:tiny-bf16", "--json"], folder=folder) for _ in range(RUNS)]
    worst = max(each.seconds for each in whole)
    yield Result("precision, built-in sample, 5 variants", quantity(worst, "s"), "", None, f"< {SAMPLE_SECONDS} s", worst < SAMPLE_SECONDS)


def precision_on_gpu() -> Iterator[Result]:
    """Measure the time on a CUDA GPU of Llamas of 0.2 and 0.75 billion parameters, and of the work done once per model."""
    for shape, way in product(("gpu", "large"), ("bf16", "fp16")):
        found = run(["-m", "tests.benchmarks.precision_ways", way, shape, "cuda"]).json
        ratio, plain = found["ratio"], f"{quantity(found['passes'], 's')} plain"
        name, target = f"  precision, {way}, width {found['width']}, {sum(found['counts'].values())} passes", f"<= {TIMES_PLAIN} times"
        yield Result(name, quantity(found["seconds"], "s"), plain, 1 / ratio, target, ratio <= TIMES_PLAIN)
        yield Result("    times the plain passes", f"{ratio:.2f} (min {found['least']:.2f})")
        yield Result("    once per model", quantity(found["setup"], "s"))
