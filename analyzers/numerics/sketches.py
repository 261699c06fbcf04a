"""Sketches a distribution of magnitudes, small and mergeable: log-linear bins and exact sums.

A binade is cut into `PER_BINADE` bins of equal width, so that a bin is at most 0.8% wide and its middle within 0.4% of
everything in it. The number of a bin is ``(floor(log2 x) - FIRST_EXPONENT) * PER_BINADE + floor((x / 2^floor(log2 x) - 1)
* PER_BINADE)`` for x > 0, from the smallest float64 to the largest. Edges of binades are edges of bins.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, ldexp
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.numerics.histogram import FP64_LARGEST, sqrt_of
from analyzers.numerics.pair_kernels import bin_of

PER_BINADE = 128
FIRST_EXPONENT = -1074  # exponent of the smallest float64
BINS = (1024 - FIRST_EXPONENT) * PER_BINADE
SUM_BITS = 3 * 1074  # squares of scaled numbers are multiples of 2^-1074 times the square of the scale
QUANTILES = (0.25, 0.5, 0.75, 0.9, 0.99)

# A block's counts are kept in bins of this many fine bins: 16 per binade.
COARSE = 8

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Summary:
    """Summary of a distribution: mean, population std and max up to rounding, percentiles and min within 0.4%; None if ``count`` is 0."""

    count: float
    mean: float | None = None
    std: float | None = None
    min: float | None = None
    p25: float | None = None
    p50: float | None = None
    p75: float | None = None
    p90: float | None = None
    p99: float | None = None
    max: float | None = None


@dataclass(frozen=True, slots=True)
class Bin:
    """A bin of ``count`` magnitudes in [low, high), of which ``changed`` belong to changed values."""

    low: float
    high: float
    count: float
    changed: float


def lower_edge(number: int) -> float:
    """Return the lower edge of bin ``number``; the largest float64 for the bin after the last."""
    exponent, inside = divmod(number, PER_BINADE)
    if exponent + FIRST_EXPONENT > 1023:
        return FP64_LARGEST
    return ldexp(1 + inside / PER_BINADE, exponent + FIRST_EXPONENT)


def in_units(x: Fraction | float) -> int:
    """Express ``x``, a multiple of 2^-`SUM_BITS`, in that unit as an integer, because adding fractions would take ten times as long."""
    numerator, denominator = x.as_integer_ratio()
    return numerator << (SUM_BITS + 1 - denominator.bit_length())


@dataclass(frozen=True, slots=True, eq=False)
class Taken:
    """The contents that `Distribution.take` removed.

    bins: (m,) indices into the flat counts, ascending; counts: (m,); the rest as in `Distribution`.
    """

    bins: Ints
    counts: Ints
    sums: list[int]
    squares: list[int]
    largest: list[float]
    zeros: int

    def coarse(self) -> tuple[Ints, Ints]:
        """Return the indices of the bins of `COARSE` fine bins each, ascending, and their counts."""
        numbers = self.bins // COARSE
        first = np.flatnonzero(np.append(True, numbers[1:] != numbers[:-1])[: numbers.size])
        return numbers[first], np.add.reduceat(self.counts, first) if first.size else self.counts


@dataclass(slots=True, eq=False)
class Distribution:
    """Positive magnitudes on two planes: values that differ without having changed (0), and changed values (1).

    counts: (2, BINS) number of magnitudes in each bin; only the pages in use take memory. sums, squares: sums of x and of x^2 over both
    planes, and over the changed values, in units of 2^-`SUM_BITS`: exact, so that merging is associative and commutative. largest:
    likewise, 0 if there are none. zeros: number of updates that are 0; they have no bin. In a `weighed` distribution all counts are
    estimates, in float64.
    """

    counts: NDArray[Any] = field(default_factory=lambda: np.zeros((2, BINS), dtype=np.int64))
    sums: list[int] = field(default_factory=lambda: [0, 0])
    squares: list[int] = field(default_factory=lambda: [0, 0])
    largest: list[float] = field(default_factory=lambda: [0.0, 0.0])
    zeros: float = 0

    def accumulate(self, changed_only: bool, total: Fraction | float, square: Fraction | float, largest: float) -> None:
        """Add to the sums of x and x^2, over all or the changed values, and update the largest."""
        self.sums[changed_only] += in_units(total)
        self.squares[changed_only] += in_units(square)
        self.largest[changed_only] = max(self.largest[changed_only], largest)

    def merge(self, other: "Distribution") -> None:
        """Add the magnitudes of ``other``. Associative and commutative."""
        self.counts = self.counts + other.counts
        self.zeros += other.zeros
        for plane in (False, True):
            self.sums[plane] += other.sums[plane]
            self.squares[plane] += other.squares[plane]
            self.largest[plane] = max(self.largest[plane], other.largest[plane])

    def take(self, least: int) -> Taken:
        """Remove all contents and return them. least: no magnitude is below 2^least, which spares a search through all bins."""
        first, last = (least - FIRST_EXPONENT) * PER_BINADE, int(bin_of(max(*self.largest, 2.0**least)))
        flat = self.counts.reshape(-1)
        plane, bins = np.nonzero(self.counts[:, first : last + 1] != 0)  # faster than on integers
        bins += plane * BINS + first
        taken = Taken(bins, flat[bins], self.sums, self.squares, self.largest, int(self.zeros))
        flat[bins] = 0
        self.sums, self.squares, self.largest, self.zeros = [0, 0], [0, 0], [0.0, 0.0], 0
        return taken

    def add(self, taken: Taken) -> None:
        """Add what was taken from another distribution."""
        self.counts.reshape(-1)[taken.bins] += taken.counts
        self.zeros += taken.zeros
        for plane in (False, True):
            self.sums[plane] += taken.sums[plane]
            self.squares[plane] += taken.squares[plane]
            self.largest[plane] = max(self.largest[plane], taken.largest[plane])

    def weighed(self, weight: Fraction | int) -> "Distribution":
        """Return the estimate for a population in which each value read stands for ``weight`` values."""
        sums, squares = ([int(each * weight) for each in sums] for sums in (self.sums, self.squares))
        return Distribution(self.counts * float(weight), sums, squares, list(self.largest), self.zeros * float(weight))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Distribution):
            return NotImplemented
        mine, theirs = ((each.sums, each.squares, each.largest, each.zeros) for each in (self, other))
        return mine == theirs and np.array_equal(self.counts, other.counts)

    def _occupied(self, changed_only: bool) -> tuple[Ints, NDArray[Any]]:
        """Return (m,) indices of the occupied bins, ascending, and their counts, of the changed values or of all."""
        counts: NDArray[Any] = self.counts[1] if changed_only else self.counts.sum(axis=0)
        bins = np.flatnonzero(counts)
        return bins, counts[bins]

    def summary(self, changed_only: bool) -> Summary:
        """Summarize all values, including zeros, or the changed values. Percentiles interpolate between order statistics."""
        n = self.number(changed_only)
        if n == 0:
            return Summary(0)
        total, square = (Fraction(each[changed_only], 1 << SUM_BITS) for each in (self.sums, self.squares))
        mean = total / Fraction(n)
        std = sqrt_of(max(square / Fraction(n) - mean * mean, Fraction(0)))
        least, p25, p50, p75, p90, p99 = self.quantiles((0, *QUANTILES), changed_only)
        return Summary(n, float(mean), std, least, p25, p50, p75, p90, p99, self.largest[changed_only])

    def number(self, changed_only: bool) -> float:
        """Count all values, including zeros, or the changed values."""
        counts = self.counts[1] if changed_only else self.counts
        return float(counts.sum()) + (0 if changed_only else self.zeros)

    def quantiles(self, shares: Sequence[float], changed_only: bool) -> list[float]:
        """Return the quantiles at ``shares``, in any order, of a distribution that is not empty."""
        bins, counts = self._occupied(changed_only)
        zeros = 0 if changed_only else self.zeros
        ends = zeros + np.cumsum(counts)
        largest, n = self.largest[changed_only], self.number(changed_only)

        def ranked(rank: float) -> float:
            if rank < zeros:
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
        squares = np.ldexp(1 + (inside + 0.5) / PER_BINADE, np.maximum(exponent - exponent[0], -1000)) ** 2
        held = np.concatenate([[0], np.cumsum(counts)])
        energy = np.concatenate([[0.0], np.cumsum(counts * squares)])
        return [float(np.interp(ceil(top * n), held, energy) / energy[-1]) for top in tops]
