"""Finds the rows of a matrix that contain only values of a narrower format, in compiled loops."""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

_BINADES_OF_A_ROW = 4
_PIECE = 64  # values
_PROOF_BITS = 40  # bits; odds of 10^-12, as a tensor may have a hundred thousand rows


@njit(nogil=True, cache=True)
def exact_rows32(codes: NDArray[np.uint32], row: int, need: int) -> tuple[int, int]:
    """Count rows of fp32 patterns whose finite values are all exact in bf16, and rows that are all exact only in fp16.

    At least ``need`` different informative values must be among them (see `_is_informative`): a row of ones or zeros
    proves nothing. codes: (n,) whole rows of ``row`` elements.
    """
    bf16 = fp16 = 0
    for start in range(0, codes.size, row):
        values = codes[start : start + row]
        narrow = _exact_in_bf16(values)
        if (narrow or _exact_in_fp16(values)) and _is_informative(values, 23, 8, need, 0 if narrow else 0xFFFF, 16 if narrow else 13):
            bf16, fp16 = bf16 + narrow, fp16 + (not narrow)
    return bf16, fp16


@njit(nogil=True, cache=True)
def exact_rows16(codes: NDArray[np.uint16], row: int, need: int) -> int:
    """Count rows of fp16 patterns whose normal values all have the 3 low mantissa bits zero: exact in bf16.

    Otherwise like `exact_rows32`. Subnormals have lost the bits that would distinguish them.
    """
    count = 0
    for start in range(0, codes.size, row):
        values = codes[start : start + row]
        if _fp16_exact_in_bf16(values):
            count += _is_informative(values, 10, 5, need, 0, 3)
    return count


@njit(nogil=True, cache=True)
def _exact_in_bf16(codes: NDArray[np.uint32]) -> bool:
    for start in range(0, codes.size, _PIECE):
        bits = np.uint32(0)
        for code in codes[start : start + _PIECE]:  # without a branch, for vector instructions
            bits |= code
        if bits & np.uint32(0xFFFF) != 0:
            for code in codes[start : start + _PIECE]:
                if code & 0xFFFF != 0 and code & 0x7FFFFFFF < 0x7F800000:
                    return False
    return True


@njit(nogil=True, cache=True)
def _exact_in_fp16(codes: NDArray[np.uint32]) -> bool:
    values = codes.view(np.float32)
    for i in range(codes.size):
        magnitude = codes[i] & 0x7FFFFFFF
        if magnitude < 0x38800000:  # below 2^-14, fp16 holds the multiples of 2^-24
            steps = abs(values[i]) * np.float32(2.0**24)
            if steps != np.floor(steps):
                return False
        elif magnitude < 0x7F800000 and (magnitude >= 0x47800000 or magnitude & 0x1FFF != 0):
            return False
    return True


@njit(nogil=True, cache=True)
def _fp16_exact_in_bf16(codes: NDArray[np.uint16]) -> bool:
    for code in codes:  # noqa: SIM110 - numba compiles no generators
        if 0x0400 <= code & 0x7FFF < 0x7C00 and code & 7 != 0:
            return False
    return True


@njit(nogil=True, cache=True)
def _is_informative(codes: NDArray[Any], mantissa: int, exponent: int, need: int, beyond: int, low: int) -> bool:
    """Return whether ``codes`` hold at least ``need`` different informative magnitudes, distributed like those of a float format.

    Informative are normal values except powers of two; they are distinguished by a 64-slot hash. The sign is ignored: a value and its
    negative pass a test together, and count as one. With ``beyond``, only codes that have one of these bits count: a row of bf16 values
    with a single other value is not a row of fp16 values. The lowest bit that the narrower format keeps, above ``low`` others, must be in
    use in 4 binades: on an integer grid (dequantized integers, counts) it is in use only in the topmost binade. Finally, the odds that all
    pass by accident, given the coarsest grid that holds the row, must be below 2^-40: each value that has more bits on that grid than the
    narrower format keeps would lose them with odds of 2^-bits, at most 2^-low.
    """
    top, fraction = (1 << exponent) - 1, (1 << mantissa) - 1
    lowest: Any = top
    for _ in range(2):  # the step of the values seen so far is at least that of all, so that most rows need only few values
        slots, binades = np.zeros(64, dtype=np.bool_), np.zeros(64, dtype=np.bool_)
        distinct = spread = 0
        proof: Any = 0
        for code in codes:
            magnitude = np.int64(code) & ((1 << (mantissa + exponent)) - 1)
            stored = magnitude >> mantissa
            if stored == 0 or stored == top or magnitude & fraction == 0 or (beyond != 0 and magnitude & beyond == 0):
                continue
            zeros = (np.float64(magnitude & -magnitude).view(np.int64) >> 52) - 1023  # the exponent of the lowest bit in use
            lowest = min(lowest, stored - mantissa + zeros)
            if magnitude & (1 << low) and not binades[stored & 63]:
                binades[stored & 63] = True
                spread += 1
            slot = (np.uint64(magnitude) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(58)
            if not slots[slot]:
                slots[slot] = True
                distinct += 1
                proof += min(max(0, stored - lowest - (mantissa - low)), low)
            if distinct >= need and spread >= _BINADES_OF_A_ROW and proof >= _PROOF_BITS:
                return True
    return False
