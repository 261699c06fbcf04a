"""Counts bit patterns of one dtype, chunk by chunk, in a bit histogram."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.numerics.bins import NARROW, bin_count, bins
from analyzers.numerics.count_kernels import count_codes, count_fp32
from analyzers.numerics.formats import FP16_OVERFLOW
from analyzers.numerics.histogram import SQUARE_BITS, BitHistogram, either


class Accumulator:
    """Counts bit patterns of one dtype on one thread; `take` returns the counts as a `BitHistogram`.

    The table is cleared and reused from span to span. Compiled loops do the counting, or torch if ``device`` is "cuda" or patterns are
    tensors, which are counted where they are and read back by `take`.
    """

    def __init__(self, dtype: str, device: str = "cpu") -> None:
        self.dtype = dtype
        self._taken = BitHistogram(dtype)
        self._table = np.zeros(bin_count(dtype), dtype=np.int64)
        self._device = device
        self._counts: Any = None  # of a device

    def update(self, codes: Any) -> None:
        """Count ``codes``, (n,) unsigned integers of the dtype's width, or a tensor as of `torch_kernels.on_device`."""
        if not isinstance(codes, np.ndarray) or (self._device == "cuda" and self.dtype != "F64"):
            self._count_on_device(codes)
            return
        if codes.size == 0:
            return
        codes = np.require(codes, requirements=("C", "A", "W"))  # required by the loops; chunks of a stream always comply
        if codes.dtype == np.uint64:
            self._count64(codes)
        elif codes.dtype == np.uint32:
            self._add_fp32(*count_fp32(codes, self._table))
        else:
            count_codes(codes, self._table)

    def take(self) -> BitHistogram:
        """Return the counts since the last call."""
        if self._counts is not None:
            table, rest = self._counts.take()
            self._table += table
            self._add_fp32(*rest)
        taken, self._taken = self._taken, BitHistogram(self.dtype)
        taken.index = np.flatnonzero(self._table != 0)  # ten times as fast as on integers
        taken.counts = self._table[taken.index]
        self._table[taken.index] = 0
        if self.dtype in NARROW:
            self._add_narrow(taken)
        return taken

    def _count_on_device(self, codes: Any) -> None:
        from analyzers.numerics.torch_kernels import DeviceCounts, on_device

        patterns = on_device(codes, self._device)
        if self._counts is None:
            self._counts = DeviceCounts(self._table.size, patterns.device)
        if patterns.numel():
            self._counts.update(patterns)

    def _add_narrow(self, taken: BitHistogram) -> None:
        """Add extremes and squares of 16- and 8-bit patterns, computed from their counts."""
        stored, table = NARROW[self.dtype], bins(self.dtype)
        finite = table.finite_nonzero[taken.index]
        index, counts = taken.index[finite], taken.counts[finite]
        if not index.size:
            return
        magnitudes = index & (1 << (stored.bits - 1)) - 1  # ordered like the values
        taken.low, taken.high = float(table.value[magnitudes.min()]), float(table.value[magnitudes.max()])
        exponents, significands = magnitudes >> stored.mantissa_bits, magnitudes & (1 << stored.mantissa_bits) - 1
        significands += np.where(exponents > 0, 1 << stored.mantissa_bits, 0)
        squares = np.zeros(1 << stored.exponent_bits, dtype=np.int64)  # sums of significands' squares: overflow takes 2^41 values of 2^22
        np.add.at(squares, np.maximum(exponents, 1), significands**2 * counts)
        occupied = np.flatnonzero(squares)
        whole = sum(square << 2 * exponent for exponent, square in zip(occupied.tolist(), squares[occupied].tolist(), strict=True))
        taken.squares = whole << (SQUARE_BITS - 2 * (stored.mantissa_bits + stored.bias))

    def _add_fp32(self, low: int, high: int, squares: float, near_overflow: int) -> None:
        """Add the results of `count_fp32`."""
        if high:
            least, most = np.array([low, high], dtype=np.uint32).view(np.float32).tolist()
            self._extend(least, most, squares, 0)
            self._taken.near_overflow += near_overflow

    def _count64(self, codes: NDArray[np.uint64]) -> None:
        """Count float64 values by their fp32 pattern, rounded toward zero but finite and nonzero; inexact ones in plane 5."""
        values = codes.view(np.float64)
        with np.errstate(all="ignore"):
            narrow = values.astype(np.float32)
        same = (narrow == values) | np.isnan(values)
        patterns = narrow.view(np.uint32).copy()
        # Where the value was rounded away from zero, the preceding pattern is the one toward zero (infinity becomes the largest finite
        # value).
        patterns[~same & (np.abs(narrow.astype(np.float64)) > np.abs(values))] -= np.uint32(1)
        low_bits = patterns & np.uint32(0xFFFF)
        plane = sum((low_bits & np.uint32(mask) == 0).astype(np.uint32) for mask in (0x1FFF, 0x3FFF, 0x7FFF, 0xFFFF))
        index = (np.where(same, plane, 5).astype(np.int64) << 16) | (patterns >> np.uint32(16)).astype(np.int64)
        index[np.isnan(values)] = 0x7FC0  # the payload of a NaN may be in bits that fp32 drops
        self._table += np.bincount(index, minlength=self._table.size)
        magnitude = np.abs(values[np.isfinite(values) & (values != 0)])
        if magnitude.size:
            high = float(magnitude.max())
            shift = int(np.frexp(high)[1])  # scaled to below 1, so that squares neither overflow nor underflow relative to the largest
            self._extend(float(magnitude.min()), high, float(np.square(np.ldexp(magnitude, -shift)).sum()), 2 * shift)
            self._taken.near_overflow += int(((magnitude >= FP16_OVERFLOW) & (magnitude < 65536)).sum())

    def _extend(self, low: float, high: float, squares: float, shift: int) -> None:
        """Add extremes and a sum of squares given as ``squares * 2^shift``."""
        taken = self._taken
        taken.low = either(min, taken.low, low)
        taken.high = either(max, taken.high, high)
        numerator, denominator = squares.as_integer_ratio()
        taken.squares += (numerator << (SQUARE_BITS + shift)) // denominator
