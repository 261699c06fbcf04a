"""Measures the coverage of quick mode's intervals on simulated checkpoints: ``python -m tests.benchmarks.intervals`` prints JSON."""

import json
from collections.abc import Iterator
from pathlib import Path

from .child import run
from .result import Result

TARGETS = ("scattered_1e-4", "scattered_0.3", "rows_1e-2", "two_matrices")
PERCENT = 90.0


def interval_coverage(folder: Path) -> Iterator[Result]:
    """Measure the coverage over 200 seeds, the lowest of three models, for properties with and without a target."""
    models = run(["-m", "tests.benchmarks.intervals"], folder=folder).json["models"]
    for name in next(iter(models.values())):
        lowest, model = min((rows[name]["covered_percent"], model) for model, rows in models.items())
        text = f"95 % intervals hold, {name}"
        if name in TARGETS:
            yield Result(text, f"{lowest:.1f} % ({model})", "", None, f">= {PERCENT:.0f} %", lowest >= PERCENT)
        else:
            yield Result(text, f"{lowest:.1f} % ({model})")


if __name__ == "__main__":
    from .coverage import SEEDS, coverage

    print(json.dumps(coverage(SEEDS)))
