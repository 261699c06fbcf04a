"""Collects statistics of the updates of pairs: magnitudes, bf16 steps, sums. Small, mergeable, and exact except for binning."""

from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.numerics.pair_kernels import STEP_BINS
from analyzers.numerics.sketches import Distribution, Taken

Ints = NDArray[np.int64]

# A sum, a sum of squares, and a maximum.
Sums = tuple[Fraction | float, Fraction | float, float]


@dataclass(slots=True)
class PairCounts:
    """Counts of pairs (w, v), w from the base and v from the tuned checkpoint.

    values: number of pairs. differ: different numbers as stored (+0 equals -0, and all NaNs are equal); changed: different numbers in bf16,
    both rounded to nearest even; probe: |v - w| > eta * max(|w|, |v|) in float64, or differ if one is not finite. nonfinite: pairs in which
    at least one number is not finite. absolute_max: largest |v - w|; update_square, base_square: sums of (v - w)^2 and w^2; these three are
    over pairs of finite values, float64 within a chunk and exact from chunk to chunk.
    """

    values: int = 0
    changed: int = 0
    probe: int = 0
    differ: int = 0
    nonfinite: int = 0
    absolute_max: float = 0.0
    update_square: Fraction = Fraction(0)
    base_square: Fraction = Fraction(0)

    @property
    def swallowed(self) -> int:
        """Number of pairs that differ as stored but not in bf16."""
        return self.differ - self.changed

    def add(self, other: "PairCounts") -> None:
        """Add the counts of ``other``."""
        self.values += other.values
        self.changed += other.changed
        self.probe += other.probe
        self.differ += other.differ
        self.nonfinite += other.nonfinite
        self.absolute_max = max(self.absolute_max, other.absolute_max)
        # Adding fractions is slow, even if one is zero.
        if other.update_square:
            self.update_square = self.update_square + other.update_square if self.update_square else other.update_square
        if other.base_square:
            self.base_square = self.base_square + other.base_square if self.base_square else other.base_square


def _no_steps() -> Ints:
    return np.zeros(STEP_BINS, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class TakenTables:
    """The contents of `PairTables` for few pairs, in little memory."""

    nonfinite: int
    absolute: Taken
    relative: Taken
    steps: Ints


@dataclass(slots=True, eq=False)
class PairTables:
    """Sizes of the updates v - w of pairs (w, v) of finite values, all symmetric in w and v.

    Absolute updates are |v - w|, relative ones |v - w| / max(|w|, |v|). Steps are those of bf16: |ord(bf16(w)) - ord(bf16(v))|, where
    ord numbers the values of bf16 in order, +0 and -0 both 0; a pair has changed when it is at least one step apart. Used by one
    thread; the tables of several threads are merged.

    nonfinite: pairs with a NaN or an infinity on either side, which nothing else counts. absolute, relative, steps: the histograms, to
    which the loops of `pair_kernels` add.
    """

    nonfinite: int = 0
    absolute: Distribution = field(default_factory=Distribution)
    relative: Distribution = field(default_factory=Distribution)
    steps: NDArray[Any] = field(default_factory=_no_steps)

    def add_others(self, zeros: int, nonfinite: int) -> None:
        """Add counts of pairs of equal values, and of excluded pairs."""
        self.absolute.zeros += zeros
        self.relative.zeros += zeros
        self.nonfinite += nonfinite
        self.steps[0] += zeros

    def add_sums(self, changed_only: bool, absolute: Sums, relative: Sums) -> None:
        """Add the sums of updates whose bins are counted elsewhere: of all pairs that differ, or of the changed pairs only."""
        for distribution, (total, square, largest) in ((self.absolute, absolute), (self.relative, relative)):
            if largest:  # adding zeros would be slow
                distribution.accumulate(changed_only, total, square, largest)

    def merge(self, other: "PairTables") -> None:
        """Add the counts of ``other``. Associative and commutative; empty tables are the identity."""
        self.absolute.merge(other.absolute)
        self.relative.merge(other.relative)
        self.nonfinite += other.nonfinite
        self.steps = self.steps + other.steps

    def take(self, least: int) -> TakenTables:
        """Remove all contents and return them. least: no absolute update is below 2^least.

        Relative updates are above 2^-54: distinct float64 are further apart.
        """
        taken = TakenTables(self.nonfinite, self.absolute.take(least), self.relative.take(-60), np.array(self.steps, np.int64))
        self.nonfinite = 0
        self.steps[:] = 0
        return taken

    def add(self, taken: TakenTables) -> None:
        """Add what was taken from other tables."""
        self.absolute.add(taken.absolute)
        self.relative.add(taken.relative)
        self.nonfinite += taken.nonfinite
        self.steps += taken.steps

    def weighed(self, weight: Fraction | int) -> "PairTables":
        """Return the estimate for a population in which each pair read stands for ``weight`` pairs; nonfinite pairs are not scaled."""
        return PairTables(self.nonfinite, self.absolute.weighed(weight), self.relative.weighed(weight), self.steps * float(weight))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PairTables):
            return NotImplemented
        same = self.absolute == other.absolute and self.relative == other.relative and self.nonfinite == other.nonfinite
        return same and np.array_equal(self.steps, other.steps)

    def ulp_bins(self) -> list[tuple[int, int, float]]:
        """Return (low, high, pairs) by steps, including high: 0, 1, 2, 3, 4 to 7, 8 to 15 and so on, up to the last that occurs."""
        edges = [0, 1, 2, 3, *(1 << bits for bits in range(2, 17))]
        bins = [(low, high - 1, count) for (low, high), count in zip(pairwise(edges), self.steps.tolist(), strict=True)]
        while bins and bins[-1][2] == 0:
            bins.pop()
        return bins
