"""Counts the bit patterns of one checkpoint in compiled loops.

Legend: ``codes`` are the stored patterns as unsigned integers, one per element. The 32-bit histogram is indexed by (plane, high half),
where the plane encodes how many low bits are zero: 0 for fewer than 13, then exactly 13, 14, 15, and 4 for 16 or more. A histogram of the
high halves alone would lose that: with planes, every question "is this value exact in a format of at most 10 mantissa bits?" is a lookup.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

_MAGNITUDE = 0x7FFFFFFF
_INFINITY = 0x7F800000
_FP16_OVERFLOW = 0x477FF000  # 65520
_ABOVE_FP16 = 0x47800000  # 65536, the start of the next bin
NO_MAGNITUDE = 0xFFFFFFFF
BF16_PLANE = 4 << 16  # the first bin of the plane of bf16 values
_PIECE = 4096  # patterns; a piece stays in the L1 cache between the loops over it


@njit(nogil=True, cache=True)
def count_codes(codes: NDArray[Any], counts: NDArray[np.int64]) -> None:
    """Add the number of occurrences of each 16- or 8-bit pattern in ``codes`` (n,) to ``counts`` (2^bits,)."""
    for i in range(codes.size):
        counts[codes[i]] += 1


@njit(nogil=True, cache=True)
def count_fp32(codes: NDArray[np.uint32], counts: NDArray[np.int64]) -> tuple[Any, Any, float, int]:
    """Add the (plane, high half) of each fp32 pattern in ``codes`` (n,) to ``counts`` (5 * 65536,).

    Returns the results of `_measure_wide`: what the counts do not tell.
    """
    low, high, squares, near_overflow = np.uint32(NO_MAGNITUDE), np.uint32(0), 0.0, 0
    bins = np.empty(_PIECE, np.uint32)
    for start in range(0, codes.size, _PIECE):
        piece = codes[start : start + _PIECE]
        if _have_low_bits(piece):
            wide = _measure_wide(piece)
            low, high = min(low, wide[0]), max(high, wide[1])
            squares, near_overflow = squares + wide[2], near_overflow + wide[3]
            _find_bins(piece, bins)
            for i in range(piece.size):
                counts[bins[i]] += 1
        else:  # bf16 values
            for i in range(piece.size):
                counts[np.uint64(BF16_PLANE | piece[i] >> np.uint32(16))] += 1
    return low, high, squares, near_overflow


# Each of the next loops has no branches, so that the compiler uses vector instructions; sums may be reassociated for the same reason.
@njit(nogil=True, cache=True)
def _have_low_bits(codes: NDArray[np.uint32]) -> Any:
    """Return whether any fp32 pattern has one of the 16 low bits, which bf16 values have not."""
    bits = np.uint32(0)
    for i in range(codes.size):
        bits |= codes[i]
    return bits & np.uint32(0xFFFF) != 0


@njit(nogil=True, cache=True)
def _find_bins(codes: NDArray[np.uint32], bins: NDArray[np.uint32]) -> None:
    """Set ``bins`` to the (plane, high half) of each fp32 pattern."""
    for i in range(codes.size):
        code, plane = codes[i], np.uint32(0)
        plane += np.uint32(code & np.uint32(0x1FFF) == 0)
        plane += np.uint32(code & np.uint32(0x3FFF) == 0)
        plane += np.uint32(code & np.uint32(0x7FFF) == 0)
        plane += np.uint32(code & np.uint32(0xFFFF) == 0)
        bins[i] = plane << np.uint32(16) | code >> np.uint32(16)


@njit(nogil=True, cache=True, fastmath={"reassoc"})
def _measure_wide(codes: NDArray[np.uint32]) -> tuple[Any, Any, float, int]:
    """Measure the finite fp32 values that are not bf16 values, since one bin holds many of them.

    Returns the smallest and the largest |pattern|, which are ordered like |value|, (`NO_MAGNITUDE`, 0) if there is none; the sum of squares
    in float64; and the number of values with 65520 <= |x| < 65536.
    """
    low, high, squares, near_overflow = np.uint32(NO_MAGNITUDE), np.uint32(0), 0.0, 0
    for i in range(codes.size):
        magnitude = np.uint32(codes[i] & np.uint32(_MAGNITUDE))
        wide = (magnitude < np.uint32(_INFINITY)) & (codes[i] & np.uint32(0xFFFF) != 0)
        low = min(low, magnitude if wide else np.uint32(NO_MAGNITUDE))
        high = max(high, magnitude if wide else np.uint32(0))
        x = np.float64(magnitude.view(np.float32)) if wide else 0.0
        squares += x * x
        near_overflow += wide & (magnitude >= np.uint32(_FP16_OVERFLOW)) & (magnitude < np.uint32(_ABOVE_FP16))
    return low, high, squares, near_overflow


@njit(nogil=True, cache=True)
def magnitudes(index: NDArray[np.int64], counts: NDArray[np.int64], value: NDArray[np.float64]) -> tuple[float, float, float]:
    """Return the smallest and the largest finite nonzero magnitude of bins ``index`` (n,) with ``counts``, and the sum of squares.

    value: (bins,) of each bin. If there is none: infinity, 0, 0.
    """
    low, high, squares = np.inf, 0.0, 0.0
    for i in range(index.size):
        x = abs(value[index[i]])
        if 0 < x < np.inf:
            low, high = min(low, x), max(high, x)
            squares += x * x * counts[i]
    return low, high, squares


@njit(nogil=True, cache=True)
def sum_groups(index: NDArray[np.int64], counts: NDArray[np.int64], group: NDArray[np.uint16], groups: int) -> NDArray[np.int64]:
    """Sum the ``counts`` of bins ``index`` (n,) by the ``group`` (bins,) of each bin: (groups,)."""
    sums = np.zeros(groups, dtype=np.int64)
    for i in range(index.size):
        sums[group[index[i]]] += counts[i]
    return sums


def fp32_bins(codes: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return the bin, (plane, high half), of each fp32 pattern, (n,), as `count_fp32` counts it."""
    plane = sum(((codes & np.uint32(mask) == 0).astype(np.uint32) for mask in (0x1FFF, 0x3FFF, 0x7FFF, 0xFFFF)), np.zeros_like(codes))
    return plane << np.uint32(16) | codes >> np.uint32(16)
