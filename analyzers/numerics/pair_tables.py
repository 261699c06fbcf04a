"""Statistics of the updates of pairs: magnitudes, bf16 steps, sums. Small, mergeable, and exact except for binning."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from analyzers.numerics.histogram import FP64_LARGEST
from analyzers.numerics.pair_kernels import JOINT_STEPS, REACH
from analyzers.numerics.sketches import Bin, Distribution, Summary, bin_of

Quantity = Literal["absolute", "relative"]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Sum, sum of squares, and maximum.
Sums = tuple[Fraction | float, Fraction | float, float]

STEP_BINS = 18
_FP32_NORMAL = np.float32(2.0**-126)


@dataclass(slots=True)
class PairCounts:
    """Counts of pairs (w, v), w of the base and v of the tuned checkpoint.

    values: number of pairs. differ: different numbers as stored (+0 equals -0, and all NaNs are equal); changed: different numbers in
    bf16, both rounded to nearest even; probe: |v - w| > eta * max(|w|, |v|) in float64, or differ if one is not finite.
    nonfinite: pairs in which one is not finite. absolute_max: largest |v - w|; update_square, base_square: sums of (v - w)^2 and
    w^2; these three are over pairs of finite values, float64 within a chunk and exact from chunk to chunk.
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
        """Pairs that differ as stored but not in bf16."""
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


@dataclass(frozen=True, slots=True)
class UlpBin:
    """``count`` pairs that are ``low`` to ``high`` (inclusive) steps of bf16 apart."""

    low: int
    high: int
    count: int


def _no_steps() -> Ints:
    return np.zeros(STEP_BINS, dtype=np.int64)


def _no_joint() -> Ints:
    return np.zeros(JOINT_STEPS << 15, dtype=np.int64)


@dataclass(slots=True, eq=False)
class PairTables:
    """How large the updates v - w of pairs (w, v) of finite values are; all of it symmetric in w and v.

    Absolute updates are |v - w|, relative ones |v - w| / max(|w|, |v|). Steps are those of bf16: |ord(bf16(w)) - ord(bf16(v))|, where
    ord numbers the values of bf16 in order, +0 and -0 both 0; a pair has changed when it is at least one step apart. Used by one
    thread; the tables of several threads are merged.

    zeros: pairs of equal values. nonfinite: pairs with a NaN or an infinity on either side, which nothing else counts. absolute,
    relative, steps: the histograms, to which the compiled loops add. joint: pairs of bf16 patterns that are near each other (see
    `pair_kernels`), which are moved to the histograms when these are asked for: their sums then do not depend on who counted what.
    """

    zeros: int = 0
    nonfinite: int = 0
    absolute: Distribution = field(default_factory=Distribution)
    relative: Distribution = field(default_factory=Distribution)
    steps: Ints = field(default_factory=_no_steps)
    joint: Ints = field(default_factory=_no_joint, repr=False)

    def add(self, w: Floats, v: Floats, steps: Ints, times: Ints) -> None:
        """Add differing pairs of finite values: (n,) values, steps between them, and how often each pair occurs.

        The bin of an update is that of its float32 result where both values are exact in fp32 and the difference is normal there, and
        of its float64 result else: a rule for each pair alone, so that every way of counting gives the same. Powers of two are told
        exactly: where the relative update is small the difference is exact, and no quotient below a power of two rounds to it.
        """
        short_update, short_relative, short = _short_updates(w, v)
        exact = updates(w, v)
        for distribution, values, rounded in zip((self.absolute, self.relative), exact, (short_update, short_relative), strict=True):
            bins = bin_of(np.where(short, rounded, values))
            moved = steps != 0
            for plane, chosen in enumerate((~moved, moved)):
                distribution.count(plane, bins[chosen], times[chosen])
            distribution.accumulate(False, *_sums(values, times))
            distribution.accumulate(True, *_sums(values[moved], times[moved]))
        np.add.at(self.steps, step_bin(steps), times)

    def add_others(self, zeros: int, nonfinite: int) -> None:
        """Add counts of pairs of equal values, and of excluded pairs."""
        self.zeros += zeros
        self.nonfinite += nonfinite
        self.steps[0] += zeros

    def add_joint(self, at: Ints, times: Ints) -> None:
        """Add ``times`` pairs to the cells ``at`` of the joint histogram; as pairs of equal values they were counted before."""
        self.joint[at] += times
        self.add_others(-int(times.sum()), 0)

    def add_sums(self, changed_only: bool, absolute: Sums, relative: Sums) -> None:
        """Add the sums of updates whose bins are counted elsewhere: of all pairs that differ, and of the changed ones of them."""
        for distribution, (total, square, largest) in ((self.absolute, absolute), (self.relative, relative)):
            if largest:  # adding zeros would be slow
                distribution.accumulate(changed_only, total, square, largest)

    def add_bins(self, plane: int, absolute: tuple[Ints, Ints], relative: tuple[Ints, Ints]) -> None:
        """Add bins of updates and their counts, of pairs that did not change (0) or did (1)."""
        self.absolute.count(plane, *absolute)
        self.relative.count(plane, *relative)

    def add_steps(self, counts: Ints) -> None:
        """Add how many pairs there are in each bin of steps (see `step_bin`), (18,)."""
        self.steps += counts

    def _settle(self) -> None:
        """Move the joint histogram to the others."""
        at = np.flatnonzero(self.joint)
        if at.size:
            self.add(*joint_values(at), self.joint[at])
            self.joint[:] = 0

    def merge(self, other: "PairTables") -> None:
        """Add the counts of ``other``. Associative and commutative; empty tables are the identity."""
        self.joint += other.joint
        self.absolute.merge(other.absolute)
        self.relative.merge(other.relative)
        self.zeros += other.zeros
        self.nonfinite += other.nonfinite
        self.steps += other.steps

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PairTables):
            return NotImplemented
        mine, theirs = ((each._of("absolute"), each._of("relative"), each.zeros, each.nonfinite) for each in (self, other))
        return mine == theirs and np.array_equal(self.steps, other.steps)

    def _of(self, quantity: Quantity) -> Distribution:
        self._settle()
        return self.absolute if quantity == "absolute" else self.relative

    def summary(self, quantity: Quantity, changed_only: bool) -> Summary:
        """Count, mean, std, percentiles and max over all pairs of finite values, or over the changed ones."""
        return self._of(quantity).summary(0 if changed_only else self.zeros, changed_only)

    def below(self, exponent: int, changed_only: bool) -> int:
        """How many pairs have a relative update smaller than 2^exponent, those without any included unless ``changed_only``.

        Exactly, for an exponent of at most -1.
        """
        return self._of("relative").below(exponent, changed_only) + (0 if changed_only else self.zeros)

    def histogram(self, quantity: Quantity, per_binade: int = 4) -> list[Bin]:
        """The occupied bins of the nonzero updates, ``per_binade`` (a power of two, at most 128) to a binade, ascending."""
        return self._of(quantity).histogram(per_binade)

    def ulp_bins(self) -> list[UlpBin]:
        """Pairs by steps: 0, 1, 2, 3, 4 to 7, 8 to 15 and so on, up to the last that occurs."""
        self._settle()
        edges = [0, 1, 2, 3, *(1 << bits for bits in range(2, 17))]
        bins = [UlpBin(low, high - 1, count) for (low, high), count in zip(pairwise(edges), self.steps.tolist(), strict=True)]
        while bins and bins[-1].count == 0:
            bins.pop()
        return bins

    def energy(self, tops: Sequence[float]) -> list[float | None]:
        """The share of the sum of squared updates in each ``top`` share of the pairs, largest first; None where nothing differs."""
        return self._of("absolute").energy(self.zeros, tops)


def updates(w: Floats, v: Floats) -> tuple[Floats, Floats]:
    """|v - w| and |v - w| / max(|w|, |v|) of differing finite values in float64. A difference beyond float64 is its largest value."""
    with np.errstate(over="ignore"):
        update = np.abs(v - w)
    larger = np.maximum(np.abs(w), np.abs(v))
    relative = update / larger
    beyond = np.isinf(update)
    if beyond.any():
        relative[beyond] = np.abs(v[beyond] / 2 - w[beyond] / 2) / (larger[beyond] / 2)
        update[beyond] = FP64_LARGEST
    return update, relative


def _short_updates(w: Floats, v: Floats) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """`updates` in float32, and the mask of the pairs that are binned by them."""
    with np.errstate(all="ignore"):
        w32, v32 = w.astype(np.float32), v.astype(np.float32)
        update = np.abs(v32 - w32)
        relative = update / np.maximum(np.abs(w32), np.abs(v32))
    short = (w32 == w) & (v32 == v) & (update >= _FP32_NORMAL) & np.isfinite(update)
    return update.astype(np.float64), relative.astype(np.float64), short


def _sums(values: Floats, times: Ints) -> tuple[Fraction, Fraction, float]:
    """Sum, sum of squares, and maximum."""
    largest = float(values.max(initial=0.0))
    shift = int(np.frexp(largest)[1])  # scaled to below 1: no square overflows, or vanishes beside the largest
    scaled = np.ldexp(values, -shift)
    total, square = float((scaled * times).sum()), float((scaled * scaled * times).sum())
    return Fraction(total) * Fraction(2) ** shift, Fraction(square) * Fraction(4) ** shift, largest


def step_bin(steps: Ints) -> Ints:
    """(n,) the bin of numbers of steps: 0, 1, 2 and 3 have one each, then 4 to 7, 8 to 15 and so on to 32,768 to 65,535."""
    return np.where(steps < 4, steps, np.frexp(steps)[1] + 1)


def joint_values(at: Ints) -> tuple[Floats, Floats, Ints]:
    """(n,) |w|, |v| and the steps between them of the pairs, of one sign, that the cells ``at`` of the joint histogram stand for."""
    step, pattern = np.divmod(at, 1 << 15)
    step -= REACH
    return _bf16_values(pattern), _bf16_values(pattern + step), np.abs(step)


def _bf16_values(patterns: Ints) -> Floats:
    return (patterns.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
