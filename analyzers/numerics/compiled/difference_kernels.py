"""The loops of `differences`."""

from typing import Any

import numpy as np
from numba import float64, int64, uint16, uint32
from numpy.typing import NDArray

from analyzers.numerics.compiled.compiler import jit
from analyzers.numerics.compiled.vector_code import room
from analyzers.numerics.differences import BLOCK


@jit()
def blocks(x: NDArray[Any], ref: NDArray[np.float32], factor: float, half: bool, start: int, stop: int, found: NDArray[np.float64]) -> None:
    """Fill rows start:stop of ``found`` (blocks, 6). half: x is fp16."""
    each = -(-x.shape[1] // BLOCK)
    wide = room(uint32, BLOCK)
    for block in range(start, stop):
        row, first = block // each, block % each * BLOCK
        codes, beside = x[row, first : first + BLOCK], ref[row, first : first + BLOCK]
        for i in range(codes.size):
            wide[i] = _from_fp16(codes[i]) if half else uint32(codes[i]) << uint32(16 if x.itemsize == 2 else 0)
        found[block] = _sums(wide[: codes.size].view(np.float32), beside, factor)


@jit(inline="always")
def _from_fp16(code: np.uint16) -> Any:
    """The pattern in fp32 of one in fp16; of an infinity where it is not finite."""
    sign, rest = uint32(code & uint16(0x8000)) << uint32(16), uint32(code & uint16(0x7FFF)) << uint32(13)
    value = np.float32(np.uint32(rest).view(np.float32) * np.float32(2.0**112))  # fp32's exponents begin so much lower
    return sign | (uint32(0x7F800000) if code & uint16(0x7C00) == uint16(0x7C00) else uint32(np.float32(value).view(np.uint32)))


# Sums may be taken in any order, so that vectors can be added; NaN and infinity arrive in them as ever.
@jit(fastmath={"reassoc", "contract", "nsz"})
def _sums(x: NDArray[np.float32], ref: NDArray[np.float32], factor: float) -> tuple[float, float, float, float, float, float]:
    """The six of one block, (n,)."""
    sum_ref, sum_d, ref_ref, d_d, ref_d = 0.0, 0.0, 0.0, 0.0, 0.0
    largest = int64(0)  # |d| as a pattern: vectors of integers have a largest element, of floats that may be NaN they have none
    for i in range(x.size):
        r = float64(ref[i])
        d = float64(x[i]) * factor - r
        sum_ref += r
        sum_d += d
        ref_ref += r * r
        d_d += d * d
        ref_d += r * d
        largest = max(largest, np.float64(abs(d)).view(np.int64))
    return sum_ref, sum_d, ref_ref, d_d, ref_d, np.int64(largest).view(np.float64)


@jit()
def largest16(codes: NDArray[np.uint16]) -> Any:
    largest = uint16(0)
    for i in range(codes.size):
        largest = max(largest, uint16(codes[i] & uint16(0x7FFF)))
    return largest


@jit()
def largest32(codes: NDArray[np.uint32]) -> Any:
    largest = uint32(0)
    for i in range(codes.size):
        largest = max(largest, uint32(codes[i] & uint32(0x7FFFFFFF)))
    return largest
