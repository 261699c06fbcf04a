"""Recomputes reference/accuracy.csv in some minutes: ``python -m tests.update_sparsity.accuracy``."""

import csv
import sys
from collections.abc import Iterator

import numpy as np

from analyzers.update_sparsity.accuracy import ACCURACY, Accuracy
from tests.update_sparsity.structures import STRUCTURES, Simulation, kind, simulated

SEEDS = 100


def measured(structure: str, simulation: Simulation) -> Iterator[Accuracy]:
    """Yield a row for each kind of estimate of a structure."""
    held = simulation.held()
    seeds = len(next(iter(held.values())))
    for name in dict.fromkeys(map(kind, held)):
        paths = [path for path in held if kind(path) == name]
        given = {path: [each for each in held[path] if each is not None] for path in paths}
        every = [each for path in paths for each in given[path]]
        often = [float(np.mean(given[path])) for path in paths if given[path] and 2 * len(given[path]) >= seeds]
        yield Accuracy(
            structure=structure,
            kind=name,
            seeds=seeds,
            estimates=len(paths),
            given=round(len(every) / (seeds * len(paths)), 4),
            held=round(float(np.mean(every)), 4) if every else None,
            least=round(min(often), 4) if often else None,
            bias=max((_bias(simulation, path) for path in paths if simulation.exact[path]), key=abs, default=None),
        )


def _bias(simulation: Simulation, path: str) -> float:
    """Return the mean relative error of an estimate whose true value is not 0."""
    found = [each.value for each in simulation.estimates[path] if each.value is not None]
    return round(float(np.mean(found) / simulation.exact[path] - 1), 4) + 0.0  # turns -0.0 into 0.0


def main() -> int:
    """Write the file."""
    with ACCURACY.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(Accuracy.model_fields), lineterminator="\n")
        writer.writeheader()
        for structure in STRUCTURES:
            writer.writerows(row.model_dump() for row in measured(structure, simulated(structure, SEEDS)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
