"""Counts pairs of bit patterns of the same weights in two checkpoints, chunk by chunk."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.numerics.conversions import FLOATS, fp32_of, values_of
from analyzers.numerics.pair_kernels import (
    COUNTS,
    DIFFER,
    JOINT_STEPS,
    MOMENTS,
    PART,
    REACH,
    SQUARE_BASE,
    SUMS,
    constant_parts,
    count_pairs,
    count_values,
)
from analyzers.numerics.sketches import PairTables

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

# Formats through which a cast may lead: none, fp16, bf16.
THROUGH = ("", "F16", "BF16")
# Fewer bf16 pairs than this are counted one at a time: scanning the joint histogram would take longer.
_FEW = 1 << 16
# Pairs of a chunk on which a cast is tried first, and the share of them that it must explain to be counted.
_TRIED, _EXPLAINED = 4096, 0.9


@dataclass(slots=True, eq=False)
class PairSums:
    """Sums over pairs (w, v) of the same weight in two checkpoints; see `pair_kernels` for the columns.

    values: number of pairs; counts: (COUNTS,); sums: (2, SUMS) of |v - w| and of |v - w| / max(|w|, |v|), and the largest; moments:
    (MOMENTS,); digests: (2,), equal if both sides hold the same values in any order; casts: (4,) pairs in which one is the other rounded to
    its dtype, directly, through fp16, through bf16, and pairs that may be roundings of one value, to bf16 and to fp16; first: index of the
    first pair that differs, of those counted so far, -1 if none does.
    """

    values: int = 0
    counts: Ints = field(default_factory=lambda: np.zeros(COUNTS, np.int64))
    sums: Floats = field(default_factory=lambda: np.zeros((2, SUMS)))
    moments: Floats = field(default_factory=lambda: np.zeros(MOMENTS))
    digests: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(2, np.uint64))
    casts: Ints = field(default_factory=lambda: np.zeros(len(THROUGH) + 1, np.int64))
    first: int = -1


@dataclass(slots=True, eq=False)
class Codes:
    """Patterns (n,) of one side as the loops require them: of bf16 if that is how both sides are stored, else of fp32.

    dtype: of the checkpoint.
    """

    patterns: NDArray[Any]
    dtype: str

    @property
    def shift(self) -> int:
        """Left shift that turns the patterns into those of fp32."""
        return 16 if self.patterns.itemsize == 2 else 0

    def values(self) -> NDArray[np.float32]:
        """Return the (n,) values."""
        return (self.patterns.astype(np.uint32) << np.uint32(16) if self.shift else self.patterns).view(np.float32)

    def constant(self) -> NDArray[np.bool_]:
        """Return (parts,) which parts of `PART` patterns hold one value throughout."""
        found = np.zeros(-(-self.patterns.size // PART), np.bool_)
        constant_parts(self.patterns, self.shift, found)
        return found


def codes_of(patterns: NDArray[Any], dtype: str, narrow: bool) -> Codes:
    """Return patterns of a dtype, contiguous and writable, as bf16 if that is the dtype and ``narrow``, else widened to fp32."""
    plain = patterns if narrow and dtype == "BF16" else fp32_of(patterns, dtype)
    return Codes(np.require(plain, requirements=("C", "A", "W")), dtype)


class PairCounter:
    """Counts pairs of two sides on one thread. eta: relative threshold of the probe, in (0, 1); only_changes: leave out what tells where
    values come from: zeros, digests and casts.
    """

    def __init__(self, eta: float, only_changes: bool = False) -> None:
        self._eta, self._only_changes = eta, only_changes
        self._joint = np.zeros(JOINT_STEPS << 15, np.uint32)
        self._none = np.zeros(0, np.uint32)
        self._no_tables = PairTables(np.zeros((1, 2, 0)), np.zeros((1, 2, 0)), np.zeros((1, 1)))

    def count(
        self, base: Codes, tuned: Codes, sums: PairSums, products: Floats, skipped: NDArray[np.bool_], tables: PairTables | None = None,
        weight: float = 1.0, changed: NDArray[np.bool_] | None = None,
    ) -> None:  # fmt: skip
        """Add pairs of patterns of equal lengths to ``sums``, to ``products``, (parts, 3), but for parts ``skipped``, and to ``tables``.

        weight: number of pairs that a pair stands for in the second of the tables. changed: (n,), set to whether bf16 values differ.
        """
        w, v = base.patterns, tuned.patterns
        bins, number = tables or self._no_tables, sums.values
        digests = sums.digests[:0] if self._only_changes else sums.digests
        near, before = base.shift == 16 and w.size >= _FEW, int(sums.counts[DIFFER])
        joint, flags = (self._joint if near else self._none), np.zeros(0, np.bool_)
        if changed is not None:
            flags = np.not_equal(w, v, out=changed)
        first = count_pairs(
            w, v, base.shift, self._eta, weight, skipped, joint, sums.counts, sums.sums, sums.moments, products, digests,
            bins.absolute, bins.relative, bins.steps, flags,
        )  # fmt: skip
        if near and first < w.size:
            self._count_joint(sums, bins, weight)
        sums.values += w.size
        if first < w.size and sums.first < 0:
            sums.first = number + first
        if self._only_changes:
            return
        if first == w.size or base.shift:  # nothing can be rounded
            equal = w.size - (int(sums.counts[DIFFER]) - before)
            through = equal if first == w.size else self._count_through(base, tuned, first)
            sums.casts += (equal, through, equal if first == w.size else 0, equal)
        else:
            self._count_casts(base, tuned, sums)

    def _count_joint(self, sums: PairSums, bins: PairTables, weight: float) -> None:
        """Count the pairs in the joint histogram, and clear it."""
        joint = self._joint
        cells = np.flatnonzero(joint != 0)  # faster than on integers
        times = joint[cells].astype(np.int64)
        joint[cells] = 0
        step, pattern = np.divmod(cells, 1 << 15)
        step -= REACH
        w, v = (values_of(codes.astype(np.uint16), "BF16") for codes in (pattern, pattern + step))  # both have the same sign
        steps = np.abs(step)
        count_values(w, v, steps, times, self._eta, weight, sums.counts, sums.sums, bins.absolute, bins.relative, bins.steps)

    def _count_through(self, base: Codes, tuned: Codes, first: int) -> int:
        """Count the bf16 values of one side that are the other's after a way through fp16, if that explains the first that differ."""
        found = 0
        for part in (slice(first, first + _TRIED), slice(None)):
            w, v = (Codes(side.patterns[part], "BF16").values().view(np.uint32) for side in (base, tuned))
            found = max(_count_casts(w, v, "F16", "BF16"), _count_casts(v, w, "F16", "BF16"))
            if found < w.size:
                return 0
        return found

    def _count_casts(self, base: Codes, tuned: Codes, sums: PairSums) -> None:
        """Count the values of one side, of fp32 patterns, that are the other's rounded to its dtype."""
        both = ((base, tuned), (tuned, base))
        if base.dtype not in FLOATS or tuned.dtype not in FLOATS:
            return
        direct = sums.casts[0]
        for way, through in enumerate(THROUGH):
            tried = [_count_casts(to.patterns[:_TRIED], source.patterns[:_TRIED], through, to.dtype) for to, source in both]
            if max(tried) >= _EXPLAINED * base.patterns[:_TRIED].size:
                likely = [sides for sides, count in zip(both, tried, strict=True) if count == max(tried)]
                sums.casts[way] += max(_count_casts(to.patterns, source.patterns, through, to.dtype) for to, source in likely)
        sums.casts[-1] += _count_apart(base, tuned) if {base.dtype, tuned.dtype} == {"BF16", "F16"} else sums.casts[0] - direct


def _count_casts(to: NDArray[np.uint32], source: NDArray[np.uint32], *formats: str) -> int:
    """Count the fp32 values (n,) that equal ``source`` rounded to one of `FLOATS` after the other, "" for none; a NaN equals any NaN."""
    values, copies = source.view(np.float32), to.view(np.float32)
    with np.errstate(all="ignore"):
        for name in formats:
            values = values.astype(FLOATS[name]).astype(np.float32) if name else values
    return int(np.count_nonzero((values == copies) | (np.isnan(values) & np.isnan(copies))))


def _count_apart(base: Codes, tuned: Codes) -> int:
    """Count the pairs of a bf16 and an fp16 value to which the same value may have been rounded: those that round to the latter do."""
    wide, narrow = (side.values() for side in ((base, tuned) if base.dtype == "BF16" else (tuned, base)))
    with np.errstate(all="ignore"):
        next_ones = (np.nextafter(narrow.astype(np.float16), np.float16(end)).astype(np.float32) for end in (-np.inf, np.inf))
        low, high = (((narrow + other) / 2).astype(FLOATS["BF16"]).astype(np.float32) for other in next_ones)
        return int(np.count_nonzero(((low <= wide) & (wide <= high)) | (np.isnan(wide) & np.isnan(narrow))))


def count_on_device(device: Any, sums: PairSums, tables: PairTables | None) -> None:
    """Add what `torch_pairs.DevicePairs` has counted."""
    from analyzers.numerics.torch_pairs import ABSOLUTE, SHARE, first_bin

    counts, found, square, histograms, steps = device.take()
    sums.counts[: counts.size] += counts
    sums.moments[SQUARE_BASE] += square
    largest = np.maximum(sums.sums, found)
    sums.sums += found
    sums.sums[:, 2::3] = largest[:, 2::3]
    if tables is not None:
        tables.steps[0] += steps
        for bins, binades, histogram in zip((tables.absolute, tables.relative), (ABSOLUTE, SHARE), histograms, strict=True):
            bins[0][:, first_bin(binades) :][:, : histogram.size // 2] += histogram.reshape(2, -1)
