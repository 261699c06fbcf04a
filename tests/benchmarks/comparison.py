"""Measures `compare`: quick on the local Hub, a pair and a merge with its parents, and exact beside `sparsity` of the same pair."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from tests.hub.process import HubProcess

from .child import Run, quantity, repeat, run
from .hub_quick import DELAY
from .model_files import make
from .result import Result

RUNS = 3
START = ["-m", "analyzers", "dtype", "sample:tiny-bf16", "--json"]
"""The start of the program and an answer that reads almost nothing."""


def compare_quick(folder: Path) -> Iterator[Result]:
    """Measure time and processor time beyond the start of the program, on models of 141 GB at 50 ms a request."""
    models = ["org/base=bf16", "org/tuned=bf16+small-steps", "org/other=bf16+independent", "org/merged=bf16+merged-0.35"]
    with HubProcess(*(word for model in models for word in ("--llama", model)), "--delay", DELAY) as hub:
        variables = hub.environ(folder)
        start = repeat(RUNS, START, variables=variables)
        for name, command, seconds, most in (
            ("compare, quick, two of 141 GB", ["compare", "org/tuned", "org/base"], 8.0, 6.0),
            ("parents, quick, a merge and two parents", ["parents", "org/merged", "org/base", "org/other"], 12.0, None),
        ):
            before = hub.totals()
            runs = repeat(RUNS, ["-m", "analyzers", *command, "--json"], variables=variables)
            asked = {key: (value - before[key]) / (RUNS + 1) for key, value in hub.totals().items()}
            taken = runs.seconds - start.seconds
            used = _processor(runs.each) - _processor(start.each)
            yield Result(f"{name}, beyond the start", quantity(taken, "s"), "", None, f"< {seconds:.0f} s", taken < seconds)
            yield Result(
                "  processor time beyond the start",
                quantity(used, "s"),
                "",
                None,
                f"< {most:.0f} s" if most else "",
                not most or used < most,
            )
            yield Result("  range requests, bytes", f"{asked['ranges']:,.0f}, {asked['bytes'] / 1e6:.0f} MB")
            yield Result("  peak memory", quantity(runs.peak_bytes / 1e6, "MB"), "", None, "< 300 MB", runs.peak_bytes < 300e6)


def compare_exact(folder: Path) -> Iterator[Result]:
    """Measure an exact comparison of two checkpoints of 2.2 GB beside `sparsity` of the same two."""
    base, tuned = make(folder / "base"), make(folder / "tuned", update="scattered-0.01")
    ours = repeat(RUNS, ["-m", "analyzers", "compare", str(tuned), str(base), "--exact", "--json"])
    plain = repeat(RUNS, ["-m", "analyzers", "sparsity", str(base), str(tuned), "--exact", "--json"])
    ratio = plain.seconds / ours.seconds
    yield Result("compare, exact, 2 x 2.2 GB, beside sparsity", str(ours), str(plain), ratio, "<= 1.5 times", 1 / ratio <= 1.5)
    yield Result("  CPU", quantity(_processor(ours.each), "s"), quantity(_processor(plain.each), "s"))
    once = run(["-m", "analyzers", "compare", str(tuned), str(base), "--exact", "--json"])
    yield Result("  peak memory", quantity(once.peak_bytes / 1e6, "MB"), "", None, "< 300 MB", once.peak_bytes < 300e6)


def _processor(runs: Sequence[Run]) -> float:
    return median(each.cpu_seconds for each in runs)
