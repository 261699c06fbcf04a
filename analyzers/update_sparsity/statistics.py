"""Shares and norms of pairs of tensors, one by one and together.

In quick mode a stratum's elements stand for more than were read of it: counts are weighed by how many each stands for
before a share is taken of several tensors, and never before they are reported as counts.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from fractions import Fraction
from math import prod
from operator import add

from analyzers.checkpoints import Tensor
from analyzers.numerics import ChangedPlaces, PairCounts, sqrt_of
from analyzers.numerics.histogram import FP64_LARGEST


@dataclass(frozen=True, slots=True)
class Places:
    """Rows and columns of a matrix, and how many of each have at least one change; without columns where they were not counted."""

    rows: int
    changed_rows: int
    columns: int
    changed_columns: int

    @classmethod
    def of(cls, counted: ChangedPlaces) -> "Places":
        """Summarize the counters of a complete matrix."""
        columns = counted.changed_columns
        return cls(counted.rows, counted.changed_rows, 0 if columns is None else counted.columns, columns or 0)


@dataclass(frozen=True, slots=True)
class Pair:
    """A tensor of the base, its counterpart in the last tuned checkpoint, and the counts of both.

    stratum: number of the stratum of the sample it belongs to, 0 where everything was read.
    """

    base: Tensor
    tuned: Tensor
    counts: PairCounts
    stratum: int
    places: Places | None

    @property
    def shape(self) -> tuple[int, ...]:
        """The compared shape: all, or the rows both have."""
        return min(self.base.shape, self.tuned.shape, key=prod)

    @property
    def parameters(self) -> int:
        """Elements that are compared."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Weighed:
    """Counts and sums of several pairs, each weighted by the number of elements that one read element represents.

    largest: of |tuned - base|, where `FP64_LARGEST` stands for all that is beyond it.
    """

    values: Fraction | int
    changed: Fraction | int
    probe: Fraction | int
    differ: Fraction | int
    update_square: Fraction
    base_square: Fraction
    largest: float

    def times(self, weight: Fraction) -> "Weighed":
        """Multiply every sum by ``weight``."""
        if weight == 1:  # everything was read, the usual case: arithmetic on fractions is slow
            return self
        *sums, largest = astuple(self)
        return Weighed(*[*(weight * each for each in sums), largest])

    def plus(self, other: "Weighed") -> "Weighed":
        """Both together."""
        (*sums, largest), (*others, theirs) = astuple(self), astuple(other)
        return Weighed(*[*map(add, sums, others), max(largest, theirs)])

    @property
    def sparsity(self) -> float | None:
        """1 - changed / compared."""
        return float(Fraction(self.values - self.changed, self.values)) if self.values else None

    @property
    def update_fraction(self) -> float | None:
        """changed / compared, from the counts: with few changes, 1 - sparsity would lose digits."""
        return float(Fraction(self.changed, self.values)) if self.values else None

    @property
    def probe_sparsity(self) -> float | None:
        """The same by the probe."""
        return float(Fraction(self.values - self.probe, self.values)) if self.values else None

    @property
    def swallowed(self) -> float | None:
        """Share of the compared elements that differ and are not changed."""
        return float(Fraction(self.differ - self.changed, self.values)) if self.values else None

    @property
    def update_norm(self) -> float | None:
        """Frobenius norm of the update, over pairs of finite values; None where float64 cannot hold it, or one of the updates."""
        return finite(sqrt_of(self.update_square)) if self.values and self.max_update is not None else None

    @property
    def max_update(self) -> float | None:
        """The largest |tuned - base|, over pairs of finite values; None from the largest float64 on, which stands for more."""
        return self.largest if self.largest < FP64_LARGEST else None

    @property
    def relative_norm(self) -> float | None:
        """The same divided by that of the base's values; None with `update_norm`."""
        if not self.base_square or self.update_norm is None:
            return None
        return finite(sqrt_of(self.update_square / self.base_square))


@dataclass(slots=True)
class Cell:
    """All pairs of one layer, role, stratum and of one dtype on each side, with their counts together: what every larger sum is made of."""

    layer: int | None
    role: str
    dtype: str
    tuned_dtype: str
    stratum: int
    pairs: list[Pair]
    counts: PairCounts


def cells(pairs: Iterable[Pair]) -> list[Cell]:
    """``pairs`` by cell, in the order of each one's first."""
    found: dict[tuple[object, ...], Cell] = {}
    for pair in pairs:
        key = pair.base.layer, pair.base.role, pair.base.dtype, pair.tuned.dtype, pair.stratum
        if key not in found:
            found[key] = Cell(*key, [], PairCounts())
        found[key].pairs.append(pair)
        found[key].counts.add(pair.counts)
    return list(found.values())


def weigh_cells(group: Iterable[Cell], weights: Sequence[Fraction]) -> Weighed:
    """Several cells together."""
    return weigh(((cell.stratum, cell.counts) for cell in group), weights)


def weigh(counts: Iterable[tuple[int, PairCounts]], weights: Sequence[Fraction]) -> Weighed:
    """Several ``(stratum, counts)`` together; weights: (strata,) elements of a stratum per element read."""
    strata: dict[int, PairCounts] = {}
    for stratum, each in counts:
        strata.setdefault(stratum, PairCounts()).add(each)
    total = Weighed(0, 0, 0, 0, Fraction(0), Fraction(0), 0.0)
    for number, (stratum, c) in enumerate(strata.items()):
        one = Weighed(c.values, c.changed, c.probe, c.differ, c.update_square, c.base_square, c.absolute_max).times(weights[stratum])
        total = total.plus(one) if number else one
    return total


def finite(x: float) -> float | None:
    """``x``, or None for what JSON cannot hold."""
    return x if math.isfinite(x) else None
