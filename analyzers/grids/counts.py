"""Counts of the grids on a tensor, or on parts of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
from numpy.typing import NDArray

from analyzers.grids.code_books import TENSOR, Tile
from analyzers.numerics.grid_kernels import ANCHORS, FINEST, GRID_COUNTS, LARGEST, MOST_BITS

Key = tuple[int, Tile]  # the number of the code book
ZEROS: Key = (-1, TENSOR)  # counts chunks of zeros, which every grid has
# Counts of pairs of small tiles (`shared_scales`), each by the bits of the tile of fewer bits and by: those of the other one; the same, of
# pairs of one scale; the bits of the pair with a zero point; its signed ones; and whether its levels are -1, 0 and 1, or, on a grid with an
# offset, whether that is a multiple of the step.
ALL_PAIRS, SAME_SCALE, PAIR_SPANS, PAIR_SIGNED, PLAIN = range(5)
# Counts of the small tiles, by their bits: of those that pass with all of their values, and their evidence in decades
PASSED, EVIDENCE = range(2)


@dataclass(slots=True)
class GridCounts:
    """Counts of one grid (`grid_kernels`), the evidence by pattern of the largest value, the scales common to all tiles, the number of
    values in tiles that were counted; of the smallest tiles also the counts of each, and of pairs of them inside larger ones."""

    values: int = 0
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(GRID_COUNTS, dtype=np.int64))
    decades: dict[int, float] = field(default_factory=dict)
    scales: tuple[float, float] = (0.0, np.inf)
    single: NDArray[np.int64] = field(default_factory=lambda: np.zeros((2, MOST_BITS + 1), dtype=np.int64))
    pairs: dict[Tile, NDArray[np.int64]] = field(default_factory=dict)

    @property
    def finest(self) -> NDArray[np.int64]:
        """The counts of `count_finest`: (levels, 2)."""
        return self.counts[FINEST:].reshape(-1, 2)

    def add(self, other: "GridCounts") -> None:
        """Add the counts of other tiles."""
        self.values += other.values
        largest = max(self.counts[LARGEST], other.counts[LARGEST])
        self.counts += other.counts
        self.counts[LARGEST] = largest
        self.scales = max(self.scales[0], other.scales[0]), min(self.scales[1], other.scales[1])
        self.single += other.single
        for tile, pairs in other.pairs.items():
            self.pairs[tile] = self.pairs.get(tile, 0) + pairs
        for anchor, decades in other.decades.items():
            self.decades[anchor] = max(decades, self.decades.get(anchor, 0.0))
        if len(self.decades) > ANCHORS:
            strongest = sorted(self.decades.items(), key=lambda item: (-item[1], item[0]))
            self.decades = dict(strongest[:ANCHORS])


Grids = dict[Key, GridCounts]


def by_key(keys: NDArray[np.int64], decades: NDArray[np.float64]) -> dict[int, float]:
    """Return the evidence that `test_tiles` has set, without what is unused."""
    return dict(zip(keys[keys >= 0].tolist(), decades[keys >= 0].tolist(), strict=True))


def together(parts: Sequence[Grids]) -> Grids:
    """Merge the counts of parts of a tensor."""
    whole: Grids = {}
    for part in parts:
        for key, counts in part.items():
            whole.setdefault(key, GridCounts()).add(counts)
    return whole


def promising(grids: Grids) -> bool:
    """Return whether there is evidence for any of the grids."""
    return any(counts.decades for key, counts in grids.items() if key != ZEROS)


def matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return rows and columns of a tensor: the last axis of matrices, stacked or not; all but the first of convolutions."""
    rows = prod(shape[:-1]) if len(shape) < 4 else shape[0]
    return rows, prod(shape) // max(rows, 1)
