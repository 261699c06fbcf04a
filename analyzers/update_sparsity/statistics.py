"""Shares and norms of pairs of tensors, one by one and together.

In quick mode an element read represents several elements of its stratum. Counts are weighted by that number before a share is computed over
several tensors, but never before they are reported as counts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from analyzers.checkpoints import Tensor
from analyzers.core.report import finite
from analyzers.numerics import ChangedPositions, PairCounts, sqrt_of
from analyzers.numerics.histogram import FP64_LARGEST

Number = Fraction | int


@dataclass(frozen=True, slots=True)
class Places:
    """Rows and columns of a matrix, and how many of each have at least one change; columns are 0 if they were not counted."""

    rows: int
    changed_rows: int
    columns: int
    changed_columns: int

    @classmethod
    def of(cls, counted: ChangedPositions) -> "Places":
        """Summarize the counters of a complete matrix."""
        columns = counted.changed_columns
        return cls(counted.rows, counted.changed_rows, 0 if columns is None else counted.columns, columns or 0)


@dataclass(frozen=True, slots=True)
class Pair:
    """A tensor of the base, its counterpart in the last tuned checkpoint, and the counts of both.

    stratum: number of its stratum in the sample, 0 if everything was read.
    """

    base: Tensor
    tuned: Tensor
    counts: PairCounts
    stratum: int
    places: Places | None

    @property
    def shape(self) -> tuple[int, ...]:
        """Compared shape: the whole tensor, or the rows that both have."""
        return min(self.base.shape, self.tuned.shape, key=prod)

    @property
    def parameters(self) -> int:
        """Number of elements compared."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Weighed:
    """Counts and sums of several pairs, each weighted by the number of elements that one read element represents.

    largest: largest |tuned - base|, at most `FP64_LARGEST`, which stands for everything beyond it.
    """

    values: Number
    changed: Number
    probe: Number
    differ: Number
    update_square: Number
    base_square: Number
    largest: float

    def _share(self, of: Number) -> float | None:
        return float(Fraction(of, self.values)) if self.values else None

    @property
    def sparsity(self) -> float | None:
        """1 - changed / compared."""
        return self._share(self.values - self.changed)

    @property
    def update_fraction(self) -> float | None:
        """changed / compared, from the counts: with few changes, 1 - sparsity would lose digits."""
        return self._share(self.changed)

    @property
    def probe_sparsity(self) -> float | None:
        """Sparsity by the probe."""
        return self._share(self.values - self.probe)

    @property
    def swallowed(self) -> float | None:
        """Share of the compared elements that differ and are not changed."""
        return self._share(self.differ - self.changed)

    @property
    def update_norm(self) -> float | None:
        """Frobenius norm of the update, over pairs of finite values; None if float64 cannot hold it or one of the updates."""
        return finite(sqrt_of(Fraction(self.update_square))) if self.values and self.max_update is not None else None

    @property
    def max_update(self) -> float | None:
        """Largest |tuned - base|, over pairs of finite values; None from the largest float64 on, which stands for everything beyond it."""
        return self.largest if self.largest < FP64_LARGEST else None

    @property
    def relative_norm(self) -> float | None:
        """Norm of the update divided by that of the base's values; None if `update_norm` is."""
        if not self.base_square or self.update_norm is None:
            return None
        return finite(sqrt_of(Fraction(self.update_square, self.base_square)))


def weigh(counts: Iterable[tuple[int, PairCounts]], weights: Sequence[Number]) -> Weighed:
    """Sum several ``(stratum, counts)``, weighted. weights: (strata,) elements of a stratum per element read."""
    strata: dict[int, PairCounts] = {}
    for stratum, each in counts:
        strata.setdefault(stratum, PairCounts()).add(each)
    names = ("values", "changed", "probe", "differ", "update_square", "base_square")
    sums = {name: sum(weights[stratum] * getattr(each, name) for stratum, each in strata.items()) for name in names}
    return Weighed(**sums, largest=max((each.absolute_max for each in strata.values()), default=0.0))


def weigh_pairs(pairs: Iterable[Pair], weights: Sequence[Number]) -> Weighed:
    """Sum the counts of several pairs, weighted."""
    return weigh(((pair.stratum, pair.counts) for pair in pairs), weights)


def total(counts: Iterable[PairCounts]) -> PairCounts:
    """Sum ``counts``, unweighted."""
    whole = PairCounts()
    for each in counts:
        whole.add(each)
    return whole
