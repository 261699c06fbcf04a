"""Histograms of the sizes of updates, small and mergeable: log-linear bins, and what they say of a distribution.

A binade is cut into `PER_BINADE` bins of equal width, so that a bin is at most 0.8% wide and its middle within 0.4% of everything in it.
The number of a bin is ``(floor(log2 x) - FIRST_EXPONENT) * PER_BINADE + floor((x / 2^floor(log2 x) - 1) * PER_BINADE)`` for x > 0, over
the range of fp32. Edges of binades are edges of bins.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, ldexp

import numpy as np
from numpy.typing import NDArray

from analyzers.numerics.pair_kernels import BINS, FIRST_EXPONENT, PER_BINADE, STEP_BINS

QUANTILES = (0.25, 0.5, 0.75, 0.9, 0.99)
SUMMARY = ("mean", "std", "min", "p25", "p50", "p75", "p90", "p99", "max")

Floats = NDArray[np.float64]


@dataclass(slots=True)
class PairTables:
    """Sizes of the updates v - w of pairs of finite values that differ, all symmetric in w and v.

    absolute: |v - w|, relative: |v - w| / max(|w|, |v|), (tables, 2, BINS), of pairs that differ without having changed in bf16 and of
    changed ones; steps: |ord(bf16(w)) - ord(bf16(v))|, where ord numbers the values of bf16 in order, (tables, STEP_BINS). The first table
    counts the pairs read; the second, in a sample, weighs each by the number of pairs that it stands for.
    """

    absolute: Floats
    relative: Floats
    steps: Floats

    @classmethod
    def empty(cls, tables: int) -> "PairTables":
        """Return empty tables: one if everything is read, two for a sample."""
        return cls(np.zeros((tables, 2, BINS)), np.zeros((tables, 2, BINS)), np.zeros((tables, STEP_BINS)))

    def merge(self, other: "PairTables") -> None:
        """Add the counts of ``other``."""
        self.absolute += other.absolute
        self.relative += other.relative
        self.steps += other.steps


def ulp_bins(steps: Floats) -> list[tuple[int, int, float]]:
    """Return (low, high, pairs) by steps, (STEP_BINS,), high included: 0, 1, 2, 3, 4 to 7 and so on, up to the last that occurs."""
    edges = [0, 1, 2, 3, *(1 << bits for bits in range(2, 17))]
    bins = [(low, high - 1, count) for (low, high), count in zip(pairwise(edges), steps.tolist(), strict=True)]
    while bins and bins[-1][2] == 0:
        bins.pop()
    return bins


@dataclass(frozen=True, slots=True)
class Bin:
    """A bin of ``count`` magnitudes in [low, high), of which ``changed`` belong to changed values."""

    low: float
    high: float
    count: float
    changed: float


def lower_edge(number: int) -> float:
    """Return the lower edge of bin ``number``."""
    exponent, inside = divmod(number, PER_BINADE)
    return ldexp(1 + inside / PER_BINADE, exponent + FIRST_EXPONENT)


@dataclass(frozen=True, slots=True, eq=False)
class Distribution:
    """Magnitudes of all values, zeros included, and of the changed ones.

    counts: (2, BINS) positive magnitudes of values that differ without having changed, and of changed values; zeros: number of updates that
    are 0; sums, squares, largest: (2,) sums of x and of x^2 and the largest x, of all and of the changed ones.
    """

    counts: Floats
    zeros: float
    sums: Floats
    squares: Floats
    largest: Floats

    def _occupied(self, changed_only: bool) -> tuple[NDArray[np.int64], Floats]:
        """Return (m,) indices of the occupied bins, ascending, and their counts, of the changed values or of all."""
        counts: Floats = self.counts[1] if changed_only else self.counts.sum(axis=0)
        bins = np.flatnonzero(counts)
        return bins, counts[bins]

    def summary(self, changed_only: bool) -> dict[str, float | None]:
        """Summarize all values, including zeros, or the changed values: mean, population std and max up to rounding, percentiles and min
        within 0.4%; all None without values. Percentiles interpolate between order statistics.
        """
        n, which = self.number(changed_only), int(changed_only)
        if n == 0:
            return dict.fromkeys(SUMMARY)
        mean = float(self.sums[which]) / n
        std = float(np.sqrt(max(float(self.squares[which]) / n - mean * mean, 0.0)))
        figures = [mean, std, *self.quantiles((0, *QUANTILES), changed_only), float(self.largest[which])]
        return dict(zip(SUMMARY, figures, strict=True))

    def number(self, changed_only: bool) -> float:
        """Count all values, including zeros, or the changed values."""
        return float(self.counts[1].sum()) if changed_only else float(self.counts.sum()) + self.zeros

    def quantiles(self, shares: Sequence[float], changed_only: bool) -> list[float]:
        """Return the quantiles at ``shares``, in any order, of a distribution that is not empty."""
        bins, counts = self._occupied(changed_only)
        zeros = 0 if changed_only else self.zeros
        ends = zeros + np.cumsum(counts)
        largest, n = float(self.largest[int(changed_only)]), self.number(changed_only)

        def ranked(rank: float) -> float:
            if rank < zeros or not bins.size:
                return 0.0
            number = int(bins[min(int(np.searchsorted(ends, rank, side="right")), len(bins) - 1)])
            low = lower_edge(number)
            return min(low + (lower_edge(number + 1) - low) / 2, largest)

        def quantile(share: float) -> float:
            below, part = divmod((n - 1) * share, 1)
            low, high = ranked(below), ranked(min(below + 1, n - 1))
            return low + (high - low) * part

        return [quantile(share) for share in shares]

    def below(self, exponent: int, changed_only: bool) -> float:
        """Count the values smaller than 2^exponent, among all values, including zeros, or among the changed values."""
        edge = (exponent - FIRST_EXPONENT) * PER_BINADE
        bins, counts = self._occupied(changed_only)
        return float(counts[bins < edge].sum()) + (0 if changed_only else self.zeros)

    def histogram(self, per_binade: int = 4) -> list[Bin]:
        """Return the occupied bins of the nonzero values, ``per_binade`` (which divides `PER_BINADE`) per binade, ascending."""
        width = PER_BINADE // per_binade
        counts = self.counts.reshape(2, -1, width).sum(axis=2)
        coarse = np.flatnonzero(counts.sum(axis=0))
        rows = zip(coarse.tolist(), *counts[:, coarse].tolist(), strict=True)
        return [Bin(lower_edge(n * width), lower_edge((n + 1) * width), kept + changed, changed) for n, kept, changed in rows]

    def energy(self, tops: Sequence[float]) -> list[float | None]:
        """Return the share of the sum of squares that lies in each ``top`` share of all values, largest first, by the centres of bins.

        The top of n values holds ceil(top * n) values. None if everything is zero.
        """
        bins, counts = (each[::-1] for each in self._occupied(changed_only=False))
        n = self.number(changed_only=False)
        if counts.size == 0:
            return [None for _ in tops]
        exponent, inside = np.divmod(bins, PER_BINADE)
        squares = np.ldexp(1 + (inside + 0.5) / PER_BINADE, exponent - exponent[0]) ** 2
        held = np.concatenate([[0], np.cumsum(counts)])
        energy = np.concatenate([[0.0], np.cumsum(counts * squares)])
        return [float(np.interp(ceil(top * n), held, energy) / energy[-1]) for top in tops]
