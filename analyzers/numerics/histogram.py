"""The bit histogram: up to the order of its elements, all that statistics of a tensor can ask for.

A 16- or 8-bit float has few enough patterns to count every one. For 32- and 64-bit floats the histogram is taken of
the high half of the fp32 pattern, split into *planes* by how many of the low bits are zero. Every value in a (plane,
high half) bin is then exact in the same formats of at most 10 mantissa bits, so the bin's representative answers for
all of them; what a bin cannot tell (extremes, squares, the two sides of 65520) is kept exactly beside it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from math import inf, isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.numerics.formats import (
    BF16,
    FP8_E4M3,
    FP8_E4M3FNUZ,
    FP8_E5M2,
    FP8_E5M2FNUZ,
    FP16,
    FP16_GRID_BELOW,
    FP16_OVERFLOW,
    FP16_UNDERFLOW,
    FP32,
    TF32,
    FloatFormat,
)
from analyzers.numerics.loops import PLAIN_BYTES, Loops, loops_for

# safetensors dtype -> its format, for the dtypes whose every pattern gets a bin.
NARROW = {
    "F16": FP16,
    "BF16": BF16,
    "F8_E4M3": FP8_E4M3,
    "F8_E5M2": FP8_E5M2,
    "F8_E4M3FNUZ": FP8_E4M3FNUZ,
    "F8_E5M2FNUZ": FP8_E5M2FNUZ,
}

# Planes: fewer than 13 low bits of the fp32 pattern zero; exactly 13, 14, 15; 16 or more. F64 adds "not exact in fp32".
PLANES = {"F32": 5, "F64": 6}
_PLANE_LOW_BITS = (0x0001, 0x2000, 0x4000, 0x8000, 0x0000, 0x0001)

CODE_TYPE = {
    "F64": np.uint64, "F32": np.uint32, "F16": np.uint16, "BF16": np.uint16,
    "F8_E4M3": np.uint8, "F8_E5M2": np.uint8, "F8_E4M3FNUZ": np.uint8, "F8_E5M2FNUZ": np.uint8,
}  # fmt: skip

# Squares are summed as whole multiples of 2^-SQUARE_BITS, below the square of the smallest float64: sums are exact, so
# merging them is associative and commutative, which floating-point addition is not.
SQUARE_BITS = 2148 + 64

FP64_LARGEST = float(np.finfo(np.float64).max)


@dataclass(frozen=True, slots=True)
class Bins:
    """What each bin of a dtype's histogram stands for; all arrays are flat, (planes * bins,).

    value: a representative (the value itself where the bin holds one pattern); exact: by format name;
    one_bit: the significand is a power of two, so the value is exact everywhere and proves nothing;
    exponent: floor(log2 |value|).
    """

    value: NDArray[np.float64]
    exact: dict[str, NDArray[np.bool_]]
    zero: NDArray[np.bool_]
    nan: NDArray[np.bool_]
    inf: NDArray[np.bool_]
    finite_nonzero: NDArray[np.bool_]
    one_bit: NDArray[np.bool_]
    overflow: NDArray[np.bool_]
    underflow: NDArray[np.bool_]
    subnormal: NDArray[np.bool_]
    normal: NDArray[np.bool_]
    low_magnitude: NDArray[np.bool_]
    beyond_fp16: NDArray[np.bool_]
    exponent: NDArray[np.int16]


FORMATS: tuple[FloatFormat, ...] = (FP16, BF16, TF32, FP8_E4M3, FP8_E5M2)


@cache
def bins(dtype: str) -> Bins:
    """The bins of ``dtype``'s histogram. For wide dtypes from one half, for every test is the same of x and -x."""
    if dtype in NARROW:
        return _bins(NARROW[dtype].decode(), NARROW[dtype], None)
    high = np.arange(1 << 15, dtype=np.uint32) << np.uint32(16)
    codes = np.concatenate([high | np.uint32(low) for low in _PLANE_LOW_BITS[: PLANES[dtype]]])
    with np.errstate(invalid="ignore"):  # signalling NaN patterns
        half = _bins(codes.view(np.float32).astype(np.float64), FP32, np.arange(codes.size) >> 15)

    def both(array: NDArray[Any], sign: int = 1) -> NDArray[Any]:
        one = array.reshape(PLANES[dtype], 1 << 15)
        return np.concatenate([one, one if sign == 1 else -one], axis=1).reshape(-1)

    rest = {name: both(getattr(half, name)) for name in Bins.__slots__ if name not in ("value", "exact")}
    return Bins(value=both(half.value, -1), exact={name: both(array) for name, array in half.exact.items()}, **rest)


def _bins(value: NDArray[np.float64], stored: FloatFormat, plane: NDArray[np.int64] | None) -> Bins:
    """What stands for each representative ``value`` of the ``stored`` format, in a ``plane`` each where there are planes."""
    every = np.ones(value.size, dtype=np.bool_)
    in_fp32 = every if plane is None else plane < 5
    finite_nonzero = np.isfinite(value) & (value != 0)
    magnitude = np.where(finite_nonzero, np.abs(value), 1.0)
    significand, exponent = np.frexp(magnitude)
    exact = {FP32.name: finite_nonzero & in_fp32}
    for format_ in FORMATS:
        # Only asked of planes with enough zero bits: this runs before the first answer.
        zeros = every if plane is None else in_fp32 & (plane >= (4 if format_.mantissa_bits <= BF16.mantissa_bits else 1))
        exact[format_.name] = np.zeros(value.size, dtype=np.bool_)
        exact[format_.name][zeros] = format_.is_exact(value[zeros])
        exact[format_.name] &= finite_nonzero
    # An fp16 value on the grid of its subnormals: a multiple of 2^-24.
    with np.errstate(over="ignore", invalid="ignore"):
        steps = value * 2.0**24
        exact["fp16_grid"] = finite_nonzero & (np.rint(steps) == steps) & in_fp32
    return Bins(
        value=value,
        exact=exact,
        zero=value == 0,
        nan=np.isnan(value),
        inf=np.isinf(value),
        finite_nonzero=finite_nonzero,
        one_bit=finite_nonzero & (significand == 0.5) & in_fp32,
        overflow=finite_nonzero & (magnitude >= FP16_OVERFLOW),
        underflow=finite_nonzero & (magnitude <= FP16_UNDERFLOW),
        subnormal=finite_nonzero & (magnitude > FP16_UNDERFLOW) & (magnitude < FP16.smallest_normal),
        normal=finite_nonzero & (magnitude >= stored.smallest_normal),
        low_magnitude=finite_nonzero & (magnitude < FP16_GRID_BELOW),
        beyond_fp16=finite_nonzero & (magnitude > 2.0**16),  # fp16's largest, 65504, rounds to 2^16 in bf16
        exponent=(exponent - 1).astype(np.int16),
    )


def _bin_count(dtype: str) -> int:
    return (1 << NARROW[dtype].bits) if dtype in NARROW else PLANES[dtype] << 16


@dataclass(slots=True, eq=False)
class BitHistogram:
    """How often each bin of ``bins(dtype)`` occurs, and for 32- and 64-bit floats what bins cannot tell.

    Only occupied bins are held: ``index`` (m,) ascending into the arrays of ``bins(dtype)``, ``counts`` (m,) how often.
    low, high: exact smallest nonzero and largest finite magnitude (None where there is none, and for narrow dtypes,
    whose bins tell). squares: sum of x^2 over finite values, in units of 2^-SQUARE_BITS (wide dtypes).
    near_overflow: values with 65520 <= |x| < 65536, which share a bin with smaller ones (wide dtypes).
    """

    dtype: str
    index: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    low: float | None = None
    high: float | None = None
    squares: int = 0
    near_overflow: int = 0

    def merge(self, other: "BitHistogram") -> "BitHistogram":
        """Both together, as a new histogram. Associative and commutative; an empty histogram is the identity."""
        if self.dtype != other.dtype:
            raise ValueError(f"cannot merge histograms of {self.dtype} and {other.dtype}")
        both = np.concatenate([self.index, other.index])
        order = np.argsort(both, kind="stable")  # of two ascending runs: a merge
        both = both[order]
        first = np.flatnonzero(np.concatenate([[True], both[1:] != both[:-1]])) if both.size else order
        index, counts = both[first], np.add.reduceat(np.concatenate([self.counts, other.counts])[order], first) if both.size else both
        return BitHistogram(
            self.dtype,
            index,
            counts,
            _either(min, self.low, other.low),
            _either(max, self.high, other.high),
            self.squares + other.squares,
            self.near_overflow + other.near_overflow,
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BitHistogram):
            return NotImplemented
        mine = (self.dtype, self.low, self.high, self.squares, self.near_overflow)
        theirs = (other.dtype, other.low, other.high, other.squares, other.near_overflow)
        return mine == theirs and np.array_equal(self.index, other.index) and np.array_equal(self.counts, other.counts)

    @property
    def values(self) -> int:
        """How many values were counted."""
        return int(self.counts.sum())

    def count(self, mask: NDArray[np.bool_]) -> int:
        """How many values lie in the bins of ``mask`` (one of the arrays of ``bins(dtype)``)."""
        return int(self.counts[mask[self.index]].sum())

    def distinct(self, mask: NDArray[np.bool_]) -> int:
        """How many bins of ``mask`` are occupied, signs left out: at least so many different magnitudes.

        A value and its negative pass every test together, so both are one piece of evidence.
        """
        sign = 1 << (NARROW[self.dtype].bits - 1) if self.dtype in NARROW else 1 << 15
        seen = np.zeros(_bin_count(self.dtype), dtype=np.bool_)
        seen[self.index[mask[self.index]] & ~sign] = True
        return int(np.count_nonzero(seen))

    def binades(self, mask: NDArray[np.bool_]) -> int:
        """In how many binades (values of floor(log2 |x|)) a bin of ``mask`` is occupied."""
        return len(set(bins(self.dtype).exponent[self.index[mask[self.index]]].tolist()))

    def overflow(self) -> int:
        """Finite values that round to infinity in fp16: |x| >= 65520."""
        return self.count(bins(self.dtype).overflow) + self.near_overflow

    def extremes(self) -> tuple[float | None, float | None, float | None]:
        """(smallest, smallest nonzero, largest) magnitude over the finite values; None where there is none."""
        table = bins(self.dtype)
        if self.dtype in NARROW:
            magnitude = np.abs(table.value[self.index][table.finite_nonzero[self.index]])
            low = float(magnitude.min()) if magnitude.size else None
            high = float(magnitude.max()) if magnitude.size else None
        else:
            low, high = self.low, self.high
        if self.count(table.zero):
            return 0.0, low, high if high is not None else 0.0
        return low, low, high

    def sum_of_squares(self) -> Fraction:
        """Sum of x^2 over the finite values, exactly as counted (narrow dtypes) or as accumulated in float64 (wide ones)."""
        if self.dtype not in NARROW:
            return Fraction(self.squares, 1 << SQUARE_BITS)
        table = bins(self.dtype)
        chosen = table.finite_nonzero[self.index]
        value = table.value[self.index][chosen]
        if value.size == 0:
            return Fraction(0)
        # By exponent, the squares are small integers times a power of two: exact in int64 (below 2^41 values), then in Python's.
        mantissa, exponent = np.frexp(np.abs(value))
        whole = np.rint(np.ldexp(mantissa, 11)).astype(np.int64)
        first = int(exponent.min())
        sums = np.zeros(int(exponent.max()) - first + 1, dtype=np.int64)
        np.add.at(sums, exponent - first, whole * whole * self.counts[chosen])
        total = sum(square << (2 * i) for i, square in enumerate(sums.tolist()))
        return total * Fraction(2) ** (2 * (first - 11))

    def norm(self) -> float:
        """Frobenius norm over the finite values."""
        return sqrt_of(self.sum_of_squares())

    def exponents(self) -> dict[int, int]:
        """How many finite nonzero values have floor(log2 |x|) = e, by e.

        In wide dtypes magnitudes below 2^-133 share bins, and those from 2^128 on; they count among the least and the largest.
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


def _either(choose: Callable[[float, float], float], a: float | None, b: float | None) -> float | None:
    if a is None or b is None:
        return b if a is None else a
    return choose(a, b)


class Accumulator:
    """Counts patterns of one dtype on one thread, and hands them over as a `BitHistogram`.

    Reused from span to span: the tables are cleared, not allocated anew. ``loops`` does the counting (by default numba's);
    with ``device`` "cuda" torch does.
    """

    def __init__(self, dtype: str, device: str = "cpu", loops: Loops | None = None) -> None:
        self.dtype = dtype
        self._loops = loops or loops_for(PLAIN_BYTES + 1)
        self._taken = BitHistogram(dtype)
        self._fine: NDArray[np.uint32] | None = None
        self._fine_blocks = 0
        self._table = np.zeros((PLANES.get(dtype, 1), min(_bin_count(dtype), 1 << 16)), dtype=np.uint32)
        self._room = 0xFFFFFFFF  # how many more values fit before a bin of the uint32 table could overflow
        self._device = device

    def update(self, codes: NDArray[Any]) -> None:
        """Count ``codes``, (n,) unsigned integers of the dtype's width."""
        if codes.size > self._room:
            self._flush()
        self._room -= codes.size
        if self._device == "cuda":
            self._count_on_device(codes)
        elif codes.dtype == np.uint8:
            self._table[0] += np.bincount(codes, minlength=256).astype(np.uint32)
        elif codes.dtype == np.uint16:
            self._loops.count16(codes, self._table)
        elif codes.dtype == np.uint32:
            if self._fine is None:
                self._fine = np.zeros(1 << 19, dtype=np.uint32)
            self._fine_blocks += self._loops.count32(codes, self._table, self._fine)
            self._magnitudes(codes, *self._loops.magnitudes32(codes))
        else:
            self._count64(codes)

    def take(self) -> BitHistogram:
        """What was counted since the last call."""
        self._flush()
        taken, self._taken = self._taken, BitHistogram(self.dtype)
        return taken

    def _flush(self) -> None:
        if self._fine is not None and self._fine_blocks:
            fold_fine(self._fine, self._table)
            self._fine_blocks = 0
        table = self._table.reshape(-1)
        index = np.flatnonzero(table)
        self._taken = self._taken.merge(BitHistogram(self.dtype, index, table[index].astype(np.int64)))
        table[index] = 0
        self._room = 0xFFFFFFFF

    def _count_on_device(self, codes: NDArray[Any]) -> None:
        from analyzers.numerics import torch_kernels

        table, low, high = torch_kernels.count(codes, self.dtype, "cuda")
        index = np.flatnonzero(table)
        self._taken = self._taken.merge(BitHistogram(self.dtype, index, table[index]))
        if codes.dtype == np.uint32:
            self._magnitudes(codes, low, high)
        elif codes.dtype == np.uint64:
            self._exact64(codes)

    def _magnitudes(self, codes: NDArray[np.uint32], low: int, high: int) -> None:
        """Extremes and squares of fp32 patterns, given their smallest nonzero and largest |pattern|."""
        if codes.size == 0 or high == 0:
            return
        values = codes.view(np.float32)
        if high >= 0x7F800000:
            values = values[np.isfinite(values)]
            magnitudes = values.view(np.uint32) & np.uint32(0x7FFFFFFF)
            nonzero = magnitudes[magnitudes != 0]
            if nonzero.size == 0:
                return
            low, high = int(nonzero.min()), int(nonzero.max())
        to_float = np.array([low, high], dtype=np.uint32).view(np.float32)
        self._extend(float(to_float[0]), float(to_float[1]), self._loops.squares(values, 1.0), 0)
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
        taken.low = _either(min, taken.low, low)
        taken.high = _either(max, taken.high, high)
        numerator, denominator = squares.as_integer_ratio()
        taken.squares += (numerator << (SQUARE_BITS + shift)) // denominator


def fold_fine(fine: NDArray[np.uint32], counts: NDArray[np.uint32]) -> None:
    """Move the histogram of 19 high bits ``fine`` (2^19,) into ``counts`` (5, 65536), and clear it."""
    by_low_bits = fine.reshape(65536, 8)
    counts[4] += by_low_bits[:, 0]
    counts[3] += by_low_bits[:, 4]
    counts[2] += by_low_bits[:, 2] + by_low_bits[:, 6]
    counts[1] += by_low_bits[:, 1::2].sum(axis=1, dtype=np.uint32)
    fine[:] = 0


def sqrt_of(square: Fraction) -> float:
    """The square root of a non-negative fraction to float64 precision, for sums that float64 itself could not hold.

    Infinity where the root is beyond float64 too.
    """
    if square == 0:
        return 0.0
    # Scale so that the integer square root keeps 64 significant bits.
    shift = (130 - (square.numerator.bit_length() - square.denominator.bit_length())) // 2 * 2
    scaled = (square.numerator << shift) // square.denominator if shift >= 0 else square.numerator // (square.denominator << -shift)
    root = Fraction(isqrt(scaled)) / (Fraction(2) ** (shift // 2))
    return float(root) if root <= FP64_LARGEST else inf
