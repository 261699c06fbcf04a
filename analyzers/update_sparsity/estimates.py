"""Intervals for magnitudes of updates from a sample of blocks: means, percentiles, shares below powers of two, energy.

The magnitudes of each block are counted in bins of `sketches.COARSE` places, 16 to a binade. If a block's count of the values on one side
of a threshold is needed, the threshold is moved to the next edge of these bins; the estimates themselves are not.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.core.records import Interval
from analyzers.numerics.intervals import Blocks
from analyzers.numerics.intervals import Interval as Intervals
from analyzers.numerics.pair_kernels import bin_of
from analyzers.numerics.sketches import BINS, COARSE, FIRST_EXPONENT, PER_BINADE, QUANTILES, Distribution, Taken, in_units

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_PLANE = BINS // COARSE
_BINADE = PER_BINADE // COARSE
_EXPONENTS = (8, 7)
# A percentile has an interval if at least this many of the values read are expected on either side of it.
_BEYOND = 5


@dataclass(frozen=True, slots=True)
class Magnitudes:
    """Updates of one block: numbers and counts of their bins on both planes, the number of zeros, and `Taken.sums`."""

    bins: Ints
    counts: Ints
    zeros: int
    totals: list[int]

    @classmethod
    def of(cls, taken: Taken) -> "Magnitudes":
        """Count the updates in bins of `COARSE` places."""
        bins, counts = taken.coarse()
        return cls(bins.astype(np.int32), counts, taken.zeros, taken.sums)


class _Cells:
    """Magnitudes of all values or of the changed ones in several blocks (axis b): counts (m,) in bins (m,) of the blocks ``owner`` (m,)."""

    def __init__(self, found: Sequence[Magnitudes], changed_only: bool) -> None:
        owner = np.repeat(np.arange(len(found)), [each.bins.size for each in found])
        bins, counts = (np.concatenate([getattr(each, name) for each in found]) for name in ("bins", "counts"))
        chosen = bins >= _PLANE * changed_only
        self._owner, self.bins, self.counts = owner[chosen], bins[chosen] % _PLANE, counts[chosen]
        self._zeros = np.array([0 if changed_only else each.zeros for each in found])
        self.number = self.sums(self.counts) + self._zeros
        self._totals = [each.totals[changed_only] for each in found]

    def totals(self, unit: float) -> Floats:
        """Sum the values of each block, (b,), in units of the largest value of all: the sums themselves need not fit float64."""
        whole = in_units(unit)
        return np.array([each / whole for each in self._totals])

    def sums(self, terms: NDArray[Any]) -> Floats:
        """Sum terms (m,) per block, (b,)."""
        return np.bincount(self._owner, terms, self._zeros.size).astype(np.float64)

    def below(self, edge: int) -> Floats:
        """Count the values of each block, (b,), in bins before ``edge``, zeros included."""
        return np.asarray(self.sums(self.counts * (self.bins < edge)) + self._zeros)


def size_intervals(found: Sequence[Magnitudes], blocks: Blocks, whole: Distribution, path: str) -> Iterator[tuple[str, Interval]]:
    """Compute intervals for the statistics of ``whole``, the weighted distribution of magnitudes, by their path in the report."""
    for changed_only in (False, True):
        if not whole.number(changed_only):
            continue
        cells, start = _Cells(found, changed_only), f"{path}.changed_only" if changed_only else path
        if largest := whole.largest[changed_only]:
            mean = blocks.ratio(cells.totals(largest)[:, None], cells.number[:, None])
            for name, found_mean in _named([f"{start}.mean"], mean):
                low, estimate, high = (min(part, 1.0) * largest for part in (found_mean.low, found_mean.estimate, found_mean.high))
                yield name, Interval(estimate=estimate, low=low, high=high)
        # Woodruff (JASA 47, 1952): the bounds are where the distribution reaches those of the share of values up to the quantile.
        values = whole.quantiles(QUANTILES, changed_only)
        reached = _shares_below([_bin_of(value) + 1 if value else 0 for value in values], cells, blocks)
        margins = zip(reached.estimate - reached.low, reached.high - reached.estimate, strict=True)
        for share, value, (below, above) in zip(QUANTILES, values, margins, strict=True):
            if share + above < 1 and cells.number.sum() * min(share, 1 - share) >= _BEYOND:
                least, most = whole.quantiles((max(share - below, 0.0), share + above), changed_only)
                least = least if share > below else 0.0
                yield f"{start}.p{100 * share:.0f}", Interval(estimate=value, low=min(least, value), high=max(most, value))
        if path.endswith("relative"):
            edges = [(-exponent - FIRST_EXPONENT) * _BINADE for exponent in _EXPONENTS]
            yield from _named([f"{start}.below_2_minus_{exponent}" for exponent in _EXPONENTS], _shares_below(edges, cells, blocks))


def energy_intervals(
    found: Sequence[Magnitudes], blocks: Blocks, whole: Distribution, tops: Sequence[float]
) -> Iterator[tuple[str, Interval]]:
    """Compute intervals for the shares of the sum of squares in the ``tops`` largest of ``whole``, by their path in the report."""
    if not whole.counts.any():
        return
    cells = _Cells(found, changed_only=False)
    last = int(cells.bins.max())
    squares = cells.counts * _square(cells.bins, last)
    every = cells.sums(squares)
    for number, (top, share) in enumerate(zip(tops, whole.energy(tops), strict=True)):
        threshold = whole.quantiles((1 - top,), changed_only=False)[0]
        edge = _bin_of(threshold) if threshold else 0
        beyond = cells.number - cells.below(edge)
        if not threshold and _shares_below([0], cells, blocks).low[0] < 1 - top:
            continue  # all updates read are among the largest, perhaps by chance
        # To keep ``top`` of the values, the threshold moves; each value that crosses it takes its square along.
        unit = float(_square(np.array([edge]), last)[0]) if threshold else 0.0
        energy = cells.sums(squares * (cells.bins >= edge)) - unit * (beyond - top * cells.number)
        for path, interval in _named([f"energy.{number}.energy"], blocks.ratio(energy[:, None], every[:, None], largest=1.0)):
            assert share is not None
            yield path, Interval(estimate=share, low=min(interval.low, share), high=max(interval.high, share))


def _bin_of(value: float) -> int:
    return int(bin_of(value)) // COARSE


def _square(bins: Ints, last: int) -> Floats:
    """Compute the squares of the midpoints of bins, in units of a power of two near that of bin ``last``."""
    exponents, inside = np.divmod(bins, _BINADE)
    return np.asarray(np.ldexp(1 + (inside + 0.5) / _BINADE, np.maximum(exponents - last // _BINADE, -500)) ** 2)


def _shares_below(edges: Sequence[int], cells: _Cells, blocks: Blocks) -> Intervals:
    positive = np.stack([cells.below(edge) for edge in edges], axis=1).astype(np.int64)
    return blocks.shares(cells.number.astype(np.int64)[:, None], positive)


def _named(names: Sequence[str], found: Intervals) -> Iterator[tuple[str, Interval]]:
    return ((name, interval) for name, interval in zip(names, Interval.each(found), strict=True) if interval is not None)
