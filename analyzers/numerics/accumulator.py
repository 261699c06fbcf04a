"""Counting: patterns of one dtype, chunk by chunk, into a bit histogram."""

from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.numerics.alike import ALIKE
from analyzers.numerics.bins import NARROW, PLANES, bin_count, bins
from analyzers.numerics.formats import FP16_OVERFLOW
from analyzers.numerics.histogram import SQUARE_BITS, BitHistogram, either
from analyzers.numerics.loops import PLAIN_BYTES, Loops, loops_for

# More than any magnitude's pattern.
_NONE = 1 << 16


class Accumulator:
    """Counts patterns of one dtype on one thread, and hands them over as a `BitHistogram`.

    Reused from span to span: the tables are cleared, not allocated anew. ``loops`` does the counting (by default compiled loops);
    with ``device`` "cuda" torch does.
    """

    def __init__(self, dtype: str, device: str = "cpu", loops: Loops | None = None) -> None:
        self.dtype = dtype
        self._loops = loops or loops_for(PLAIN_BYTES + 1)
        self._taken = BitHistogram(dtype)
        self._fine: NDArray[np.uint32] | None = None
        self._fine_blocks = 0
        self._table = np.zeros((PLANES.get(dtype, 1), min(bin_count(dtype), 1 << 16)), dtype=np.uint32)
        self._occupied = np.empty((2, self._table.size), dtype=np.int64)  # takes memory only where it is written to
        self._beside = np.zeros((3, 256), dtype=np.int64)  # see `kernels.count_bf16`
        self._beside[2, 0] = _NONE
        alike = ALIKE.get(dtype)
        exact = int(dtype in NARROW)
        self._kind = (alike.mantissa, alike.first, alike.last, alike.low, exact) if alike else (0, 0, 0, 0, 0)
        self._room = 0xFFFFFFFF  # how many more values fit before a bin of the uint32 table could overflow
        self._device = device

    def update(self, codes: NDArray[Any]) -> bool:
        """Count ``codes``, (n,) unsigned integers of the dtype's width. Returns whether they are known to be fp32 values exact in bf16."""
        narrow = False
        if codes.size > self._room:
            self._flush()
        self._room -= codes.size
        if self._device == "cuda":
            self._count_on_device(codes)
        elif codes.dtype == np.uint8:
            self._table[0] += np.bincount(codes, minlength=256).astype(np.uint32)
        elif codes.dtype == np.uint16:
            count = self._loops.count_bf16 if self.dtype == "BF16" else self._loops.count_fp16
            count(codes, self._table, self._beside)
        elif codes.dtype == np.uint32:
            if self._fine is None:
                self._fine = np.zeros(1 << 19, dtype=np.uint32)
            fine_blocks, low, high, squares, narrow = self._loops.count32(codes, self._table, self._fine, self._beside)
            self._fine_blocks += fine_blocks
            self._magnitudes(codes, low, high, squares)
        else:
            self._count64(codes)
        return narrow

    def take(self) -> BitHistogram:
        """What was counted since the last call."""
        self._flush()
        taken, self._taken = self._taken, BitHistogram(self.dtype)
        return taken

    def _flush(self) -> None:
        if self._fine is not None and self._fine_blocks:
            fold_fine(self._fine, self._table)
            self._fine_blocks = 0
        if self._table.size == 256:
            self._settle8()
        occupied = self._loops.take_counts(self._table, self._beside, self._kind, *self._occupied)
        if self._kind[-1]:
            self._settle16()
        index, counts = self._occupied[:, :occupied].copy()
        taken = self._taken
        if taken.index.size:
            self._taken = taken.merge(BitHistogram(self.dtype, index, counts))
        else:
            taken.index, taken.counts = index, counts
        self._room = 0xFFFFFFFF

    def _settle16(self) -> None:
        """Extremes and squares of 16-bit patterns."""
        beside, alike = self._beside, ALIKE[self.dtype]
        squares = sum(whole << 2 * exponent for exponent, whole in enumerate(beside[1].tolist()) if whole)
        self._taken.squares += squares << (SQUARE_BITS - 2 * (alike.mantissa + alike.bias))
        self._ends(*beside[2, :2].tolist())
        beside[1] = 0
        beside[2, :2] = _NONE, 0

    def _settle8(self) -> None:
        """Extremes and squares of 8-bit patterns."""
        finite = np.flatnonzero((self._table[0] != 0) & bins(self.dtype).finite_nonzero)
        squares = _squares(self.dtype)
        self._taken.squares += sum(squares[i] * count for i, count in zip(finite.tolist(), self._table[0, finite].tolist(), strict=True))
        magnitudes = finite & 0x7F
        self._ends(int(magnitudes.min(initial=_NONE)), int(magnitudes.max(initial=0)))

    def _ends(self, low: int, high: int) -> None:
        """Take in the smallest and the largest of finite patterns without their signs, which are ordered like magnitudes."""
        if high:
            taken, value = self._taken, bins(self.dtype).value
            taken.low, taken.high = either(min, taken.low, float(value[low])), either(max, taken.high, float(value[high]))

    def _count_on_device(self, codes: NDArray[Any]) -> None:
        from analyzers.numerics import torch_kernels

        table, low, high, squares = torch_kernels.count(codes, self.dtype, "cuda")
        self._table += table.astype(np.uint32).reshape(self._table.shape)
        if codes.dtype == np.uint32:
            self._magnitudes(codes, low, high, squares)
        elif codes.dtype == np.uint64:
            self._exact64(codes)

    def _magnitudes(self, codes: NDArray[np.uint32], low: int, high: int, squares: float) -> None:
        """Extremes and squares of fp32 patterns, given their smallest nonzero and largest |pattern|, and the squares of all of them."""
        if codes.size == 0 or high == 0:
            return
        values = codes.view(np.float32)
        if high >= 0x7F800000:
            values = values[np.isfinite(values)]
            magnitudes = values.view(np.uint32) & np.uint32(0x7FFFFFFF)
            nonzero = magnitudes[magnitudes != 0]
            if nonzero.size == 0:
                return
            low, high, squares = int(nonzero.min()), int(nonzero.max()), self._loops.squares(values, 1.0)
        to_float = np.array([low, high], dtype=np.uint32).view(np.float32)
        self._extend(float(to_float[0]), float(to_float[1]), squares, 0)
        if to_float[1] >= FP16_OVERFLOW:
            magnitude = np.abs(values)
            self._taken.near_overflow += int(((magnitude >= FP16_OVERFLOW) & (magnitude < 65536)).sum())

    def _count64(self, codes: NDArray[np.uint64]) -> None:
        """float64 by way of its fp32 pattern, rounded toward zero and kept finite and nonzero, in plane 5 where inexact."""
        values = codes.view(np.float64)
        with np.errstate(all="ignore"):
            narrow = values.astype(np.float32)
        same = (narrow == values) | np.isnan(values)
        patterns = narrow.view(np.uint32).copy()
        # Rounded away from zero: the pattern before it is the one toward zero (infinity becomes the largest finite).
        patterns[~same & (np.abs(narrow.astype(np.float64)) > np.abs(values))] -= np.uint32(1)
        low_bits = patterns & np.uint32(0xFFFF)
        plane = sum((low_bits & np.uint32(mask) == 0).astype(np.uint32) for mask in (0x1FFF, 0x3FFF, 0x7FFF, 0xFFFF))
        index = (np.where(same, plane, 5).astype(np.int64) << 16) | (patterns >> np.uint32(16)).astype(np.int64)
        index[np.isnan(values)] = 0x7FC0  # a NaN's payload may live in the bits that fp32 drops
        self._table += np.bincount(index, minlength=self._table.size).astype(np.uint32).reshape(self._table.shape)
        self._exact64(codes)

    def _exact64(self, codes: NDArray[np.uint64]) -> None:
        values = codes.view(np.float64)
        values = values[np.isfinite(values)]
        magnitude = np.abs(values)
        nonzero = magnitude[magnitude != 0]
        if nonzero.size == 0:
            return
        high = float(nonzero.max())
        shift = int(np.frexp(high)[1])  # scaled to below 1, so that no square overflows or vanishes beside the largest
        self._extend(float(nonzero.min()), high, self._loops.squares(np.ldexp(values, -shift), 1.0), 2 * shift)
        self._taken.near_overflow += int(((magnitude >= FP16_OVERFLOW) & (magnitude < 65536)).sum())

    def _extend(self, low: float, high: float, squares: float, shift: int) -> None:
        """Add extremes and a sum of squares given as ``squares * 2^shift``."""
        taken = self._taken
        taken.low = either(min, taken.low, low)
        taken.high = either(max, taken.high, high)
        numerator, denominator = squares.as_integer_ratio()
        taken.squares += (numerator << (SQUARE_BITS + shift)) // denominator


@cache
def _squares(dtype: str) -> tuple[int, ...]:
    """The square of each pattern's value in units of 2^-SQUARE_BITS; 0 where it is not finite."""
    table = bins(dtype)
    values = np.where(table.finite_nonzero, table.value, 0.0)
    return tuple([int(Fraction(value) ** 2 * (1 << SQUARE_BITS)) for value in values.tolist()])


def fold_fine(fine: NDArray[np.uint32], counts: NDArray[np.uint32]) -> None:
    """Move the histogram of 19 high bits ``fine`` (2^19,) into ``counts`` (5, 65536), and clear it."""
    by_low_bits = fine.reshape(65536, 8)
    counts[4] += by_low_bits[:, 0]
    counts[3] += by_low_bits[:, 4]
    counts[2] += by_low_bits[:, 2] + by_low_bits[:, 6]
    counts[1] += by_low_bits[:, 1::2].sum(axis=1, dtype=np.uint32)
    fine[:] = 0
