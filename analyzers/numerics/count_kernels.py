"""Loops that count the bit patterns of one checkpoint.

Legend: ``codes`` are the stored patterns as unsigned integers, one per element. The 32-bit histogram is indexed by
(plane, high half), where the plane tells how many low bits are zero: 0 for fewer than 13, then exactly 13, 14, 15,
and 4 for 16 or more. A 16-bit histogram would lose that: with planes, every question "is this value exact in a
format of at most 10 mantissa bits?" is a lookup.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

BLOCK = 4096  # elements: a block stays in the L1 cache from one loop to the next

_MAGNITUDE = 0x7FFFFFFF
_INFINITY = 0x7F800000
_FP16_OVERFLOW = 0x477FF000  # 65520
_ABOVE_FP16 = 0x47800000  # 65536, where the next bin begins
NO_MAGNITUDE = 0xFFFFFFFF


@njit(nogil=True, cache=True)
def count_codes(codes: NDArray[Any], counts: NDArray[np.int64]) -> None:
    """Add how often each 16- or 8-bit pattern occurs in ``codes`` (n,) to ``counts`` (2^bits,)."""
    for i in range(codes.size):
        counts[codes[i]] += 1


@njit(nogil=True, cache=True)
def _count_block(codes: NDArray[np.uint32], counts: NDArray[np.int64]) -> None:
    """Add the (plane, high half) of each pattern to ``counts``, flat."""
    for i in range(codes.size):
        code = np.int64(codes[i])
        plane = 0
        if code & 0x1FFF == 0:
            plane = 1 + (code & 0x3FFF == 0) + (code & 0x7FFF == 0) + (code & 0xFFFF == 0)
        counts[np.uint64(plane << 16 | code >> 16)] += 1  # unsigned: numba would check for a negative index


@njit(nogil=True, cache=True)
def _extremes(codes: NDArray[np.uint32]) -> tuple[int, int]:
    """The smallest nonzero and the largest |pattern|, NaN and infinities included."""
    low, high = NO_MAGNITUDE, 0
    for i in range(codes.size):
        magnitude: Any = np.int64(codes[i] & _MAGNITUDE)
        high = max(high, magnitude)
        low = min(low, magnitude if magnitude != 0 else NO_MAGNITUDE)
    return low, high


# The sum may be taken in any order, which allows vector instructions.
@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def _squares(codes: NDArray[np.uint32]) -> float:
    """Sum of the squares of fp32 values in float64."""
    values = codes.view(np.float32)
    total = 0.0
    for i in range(values.size):
        x = np.float64(values[i])
        total += x * x
    return total


@njit(nogil=True, cache=True)
def count_fp32(codes: NDArray[np.uint32], counts: NDArray[np.int64]) -> tuple[int, int, float, int]:
    """Add the (plane, high half) of each fp32 pattern in ``codes`` (n,) to ``counts`` (5 * 65536,).

    Returns, of the finite values: the smallest nonzero and the largest |pattern|, which are ordered like |value|, (`NO_MAGNITUDE`, 0)
    if there is none; the sum of squares in float64; and how many lie in 65520 <= |x| < 65536.
    """
    low, high, squares, near_overflow = NO_MAGNITUDE, 0, 0.0, 0
    for start in range(0, codes.size, BLOCK):
        block = codes[start : start + BLOCK]
        _count_block(block, counts)
        least, most = _extremes(block)
        if most < _FP16_OVERFLOW:
            low, high = min(low, least), max(high, most)
            squares += _squares(block)
            continue
        for code in block:
            magnitude: Any = np.int64(code & _MAGNITUDE)
            if magnitude < _INFINITY:
                if magnitude != 0:
                    low, high = min(low, magnitude), max(high, magnitude)
                x = np.float64(np.uint32(code).view(np.float32))
                squares += x * x
                near_overflow += bool(_FP16_OVERFLOW <= magnitude < _ABOVE_FP16)
    return low, high, squares, near_overflow
