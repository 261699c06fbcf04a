"""Implements the bit histogram, which describes a tensor completely up to the order of its elements.

`bins` defines the bins; extremes, sums of squares and the count on either side of 65520, which bins of fp32 do not resolve, are stored too.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from analyzers.numerics.bins import NARROW, BinGroups, bin_count, bins
from analyzers.numerics.count_kernels import sum_groups


@dataclass(slots=True, eq=False)
class BitHistogram:
    """The number of occurrences of each bin of ``bins(dtype)``, and statistics that bins of fp32 do not resolve.

    Only occupied bins are stored: ``index`` (m,) ascending into the arrays of ``bins(dtype)``, ``counts`` (m,). low, high: smallest nonzero
    and largest finite magnitude, None if there is none. squares: sum of x^2 over finite values, in float64. near_overflow: values with
    65520 <= |x| < 65536, which share a bin with smaller ones (fp32).
    """

    dtype: str
    index: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    low: float | None = None
    high: float | None = None
    squares: float = 0.0
    near_overflow: int = 0

    def add_magnitudes(self, low: float, high: float, squares: float) -> None:
        """Add the smallest and the largest finite nonzero magnitude of some values, 0 if there is none, and their sum of squares."""
        if high:
            self.low, self.high = min(self.low or low, low), max(self.high or high, high)
            self.squares += squares

    @classmethod
    def together(cls, parts: Sequence["BitHistogram"]) -> "BitHistogram":
        """Merge one or more histograms of one dtype into a new one; an empty histogram is the identity."""
        whole = parts[0]
        if len(parts) == 1:
            return whole
        if any(part.dtype != whole.dtype for part in parts):
            raise ValueError(f"cannot merge histograms of {' and '.join(part.dtype for part in parts)}")
        table = np.zeros(bin_count(whole.dtype), dtype=np.int64)
        for part in parts:
            table[part.index] += part.counts
        low = min((part.low for part in parts if part.low is not None), default=None)
        high = max((part.high for part in parts if part.high is not None), default=None)
        index = np.flatnonzero(table != 0)
        squares, near = sum(part.squares for part in parts), sum(part.near_overflow for part in parts)
        return cls(whole.dtype, index, table[index], low, high, squares, near)

    @property
    def values(self) -> int:
        """Number of values counted."""
        return int(self.counts.sum())

    def count(self, mask: NDArray[np.bool_]) -> int:
        """Count the values in the bins of ``mask``: one of the masks of ``bins(dtype)``, or a combination of them."""
        return int(self.counts[mask[self.index]].sum())

    def count_each(self, groups: BinGroups) -> list[int]:
        """Count the values of each mask of ``groups``, like `count`, in one pass."""
        found: list[int] = (sum_groups(self.index, self.counts, groups.group, len(groups.masks)) @ groups.masks).tolist()
        return found

    def distinct(self, mask: NDArray[np.bool_]) -> int:
        """Count the occupied bins of ``mask``, regardless of sign: a lower bound on the number of different magnitudes.

        A value and its negative pass every test together, so both are one piece of evidence.
        """
        sign = 1 << (NARROW[self.dtype].bits - 1) if self.dtype in NARROW else 1 << 15
        seen = np.zeros(bin_count(self.dtype), dtype=np.bool_)
        seen[self.index[mask[self.index]] & ~sign] = True
        return int(np.count_nonzero(seen))

    def binades(self, mask: NDArray[np.bool_]) -> int:
        """Count the binades (values of floor(log2 |x|)) with an occupied bin of ``mask``."""
        exponent = bins(self.dtype).exponent[self.index[mask[self.index]]]
        seen = np.zeros(1 << 12, dtype=np.bool_)
        seen[exponent] = True  # negative exponents count from the end
        return int(np.count_nonzero(seen))

    def overflow(self) -> int:
        """Count the finite values that round to infinity in fp16: |x| >= 65520."""
        return self.count(bins(self.dtype).overflow) + self.near_overflow

    def extremes(self) -> tuple[float | None, float | None, float | None]:
        """Return the (smallest, smallest nonzero, largest) magnitude over the finite values; None if there are none."""
        if self.count(bins(self.dtype).zero):
            return 0.0, self.low, self.high if self.high is not None else 0.0
        return self.low, self.low, self.high

    def exponents(self) -> dict[int, int]:
        """Count the finite nonzero values by their exponent e = floor(log2 |x|).

        In wide dtypes magnitudes below 2^-133 share bins, and those from 2^128 on; they count towards the smallest and the largest
        exponent.
        """
        table = bins(self.dtype)
        chosen = table.finite_nonzero[self.index]
        exponent = table.exponent[self.index][chosen].astype(np.int64)
        if exponent.size == 0:
            return {}
        first = int(exponent.min())
        counts = np.zeros(int(exponent.max()) - first + 1, dtype=np.int64)
        np.add.at(counts, exponent - first, self.counts[chosen])
        return {first + i: int(c) for i, c in enumerate(counts) if c}
