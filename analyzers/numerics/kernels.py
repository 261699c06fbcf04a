"""The loops over bits: numba on the CPU. They release the GIL, so that threads run them side by side; compiled once, then cached.

Legend: ``codes`` are the stored patterns as unsigned integers, one per element. The 32-bit histogram is indexed by
(plane, high half), where the plane tells how many low bits are zero: 0 for fewer than 13, then exactly 13, 14, 15,
and 4 for 16 or more. That is what a 16-bit histogram would lose: with it, every question "is this value exact in a
format of at most 10 mantissa bits?" is a lookup.
"""

from typing import Any

import numba
import numpy as np
from numba import float64, int64, uint32, uint64
from numpy.typing import NDArray

_MASK16 = np.uint64(0xFFFF)


def _jit(**options: Any) -> Any:
    return numba.njit(nogil=True, cache=True, **options)


@_jit()
def count16(codes: NDArray[np.uint16], counts: NDArray[np.uint32]) -> None:
    """Add how often each 16-bit pattern occurs in ``codes`` (n,) to ``counts`` (1, 65536). No bin may pass 2^32 - 1."""
    bins = counts[0]
    quads = codes.size // 4
    words = codes[: 4 * quads].view(np.uint64)
    for i in range(quads):  # one load for four elements; the stores are what limits this loop
        word = words[i]
        bins[word & _MASK16] += uint32(1)
        bins[(word >> uint64(16)) & _MASK16] += uint32(1)
        bins[(word >> uint64(32)) & _MASK16] += uint32(1)
        bins[word >> uint64(48)] += uint32(1)
    for i in range(4 * quads, codes.size):
        bins[codes[i]] += uint32(1)


@_jit(inline="always")
def _plane_and_high_half(code: Any) -> Any:
    plane = uint32((code & uint32(0x1FFF)) == 0)
    plane += uint32((code & uint32(0x3FFF)) == 0)
    plane += uint32((code & uint32(0x7FFF)) == 0)
    plane += uint32((code & uint32(0xFFFF)) == 0)
    return (plane << uint32(16)) | (code >> uint32(16))


@_jit()
def count32(codes: NDArray[np.uint32], counts: NDArray[np.uint32], fine: NDArray[np.uint32]) -> int:
    """Add the (plane, high half) of each fp32 pattern in ``codes`` (n,) to ``counts`` (5, 65536).

    Works in blocks of 64, for in most files all values of a block are of one kind: no low 13 bits all zero (native),
    all low 16 bits zero (were bf16), or all low 13 bits zero (were fp16). The last kind goes to ``fine`` (2^19,), the
    histogram of the 19 high bits, which `histogram.fold_fine` adds to ``counts``. Returns how many blocks did.
    """
    planes = counts.reshape(-1)
    native = counts[0]
    bf16 = counts[4]
    fine_blocks = 0
    whole = codes.size - codes.size % 64
    for start in range(0, whole, 64):
        block = codes[start : start + 64]
        least = uint32(0x1FFF)
        any_bits = uint32(0)
        for i in range(64):
            least = min(least, block[i] & uint32(0x1FFF))
            any_bits |= block[i]
        if least != 0:
            for i in range(64):
                native[block[i] >> uint32(16)] += uint32(1)
        elif any_bits & uint32(0xFFFF) == 0:
            for i in range(64):
                bf16[block[i] >> uint32(16)] += uint32(1)
        elif any_bits & uint32(0x1FFF) == 0:
            fine_blocks += 1
            for i in range(64):
                fine[block[i] >> uint32(13)] += uint32(1)
        else:
            for i in range(64):
                planes[_plane_and_high_half(block[i])] += uint32(1)
    for i in range(whole, codes.size):
        planes[_plane_and_high_half(codes[i])] += uint32(1)
    return fine_blocks


@_jit()
def magnitudes32(codes: NDArray[np.uint32]) -> tuple[int, int]:
    """Smallest nonzero and largest |pattern| in ``codes``, NaN and infinities included; (2^32 - 1, 0) when all are zero.

    |pattern| orders like |value|. Subtracting one as unsigned sends zero to the top, where the minimum ignores it.
    """
    low = uint32(0xFFFFFFFF)
    high = uint32(0)
    for i in range(codes.size):
        magnitude = codes[i] & uint32(0x7FFFFFFF)
        high = max(high, magnitude)
        low = min(low, uint32(magnitude - uint32(1)))
    return int(low) + 1 if low != uint32(0xFFFFFFFF) else 0xFFFFFFFF, int(high)


@_jit(fastmath={"reassoc", "contract"})
def squares(values: NDArray[np.floating[Any]], scale: float) -> float:
    """Sum of (scale * x)^2 over ``values`` (n,), accumulated in float64. All values must be finite."""
    total = float64(0.0)
    for i in range(values.size):
        x = float64(values[i]) * scale
        total += x * x
    return total


@_jit()
def runs_of_few_significands(
    codes: NDArray[Any], row: int, first: int, mantissa: int, exponent: int, stride: int, out: NDArray[np.int64]
) -> None:
    """Count how many different significands (top 7 mantissa bits) runs of 128 neighbours hold.

    A run lies within one row and starts at a multiple of 128 in it; every ``stride``-th run of the tensor is looked
    at. Only normal values count; a run needs 32 of them. Values of a scaled fp8 or fp4 grid keep the few
    significands of that grid, whatever the scale of the run. So do others, which a floating grid is told from by its
    exponents: the steps of an integer grid (dequantized int4: 1, 2, ... 15) and values close to one constant (norms near
    1) have fewer than 6. So have a few values repeated, which are fewer than 20. Such runs say nothing and count as if of
    one significand.

    codes: (n,) whole rows; row: elements in a row; first: index of the first row in its tensor; mantissa, exponent:
    bits of each in the stored dtype; out: (10,) histogram of the number of distinct significands, 9 meaning more than 8.
    """
    per_row = (row + 127) // 128
    top = uint64((1 << exponent) - 1)
    mantissa_shift = uint64(mantissa)
    significand_shift = uint64(mantissa - 7)
    for r in range(codes.size // row):
        step = (stride - (first + r) * per_row % stride) % stride
        for k in range(step, per_row, stride):
            start = r * row + k * 128
            end = min(start + 128, (r + 1) * row)
            low = uint64(0)
            high = uint64(0)
            exponents = uint64(0)
            normal = 0
            while start < end:
                for i in range(start, min(start + 32, end)):  # no branches in here: they would be coin tosses
                    code = uint64(codes[i])
                    stored = (code >> mantissa_shift) & top
                    counts = uint64(stored != 0) & uint64(stored != top)
                    normal += int64(counts)
                    exponents |= counts << (stored & uint64(63))
                    bit = (code >> significand_shift) & uint64(127)
                    upper = bit >> uint64(6)
                    low |= (counts & (upper ^ uint64(1))) << (bit & uint64(63))
                    high |= (counts & upper) << (bit & uint64(63))
                start += 32
                if normal >= 32 and _ones(low, high) > 8:
                    break
            if normal >= 32:
                distinct = _ones(low, high)
                if distinct <= 8 and (_ones(exponents, uint64(0)) < 6 or _few_magnitudes(codes[r * row + k * 128 : end], 20)):
                    distinct = 1
                out[distinct] += 1


@_jit()
def _few_magnitudes(codes: NDArray[Any], need: int) -> bool:
    """Whether there are fewer than ``need`` different patterns, signs left out, in ``codes`` (at most 128 of them)."""
    magnitude = (1 << (8 * codes.itemsize - 1)) - 1
    found = np.empty(need, dtype=np.uint64)
    distinct = 0
    for i in range(codes.size):
        code = uint64(codes[i]) & uint64(magnitude)
        known = False
        for j in range(distinct):
            known |= found[j] == code
        if not known:
            found[distinct] = code
            distinct += 1
            if distinct == need:
                return False
    return True


@_jit(inline="always")
def _ones(low: Any, high: Any) -> int:
    """How many bits are set in two 64-bit words; counting stops at 9."""
    count = 0
    while low != 0 and count < 9:
        low &= low - uint64(1)
        count += 1
    while high != 0 and count < 9:
        high &= high - uint64(1)
        count += 1
    return count


@_jit()
def exact_rows32(codes: NDArray[np.uint32], row: int, need: int) -> tuple[int, int]:
    """Count rows of fp32 patterns whose finite values are all exact in bf16, and those all exact in fp16 alone.

    At least ``need`` different informative values must be among them (see `_informative`): a row of ones or zeros
    proves nothing. codes: (n,) whole rows of ``row`` elements. Most rows are left after their first 64 values.
    """
    bf16 = fp16 = 0
    for start in range(0, codes.size // row * row, row):
        first, end = min(start + 64, start + row), start + row
        if _exact_in_bf16(codes[start:first]) and _exact_in_bf16(codes[first:end]):
            bf16 += _informative(codes[start:end], 23, 8, need, 0, 0x10000)
        elif _exact_in_fp16(codes[start:first]) and _exact_in_fp16(codes[first:end]):
            fp16 += _informative(codes[start:end], 23, 8, need, 0xFFFF, 0x2000)
    return int(bf16), int(fp16)


@_jit()
def _exact_in_bf16(codes: NDArray[np.uint32]) -> bool:
    exceptions = uint32(0)
    for i in range(codes.size):
        magnitude = codes[i] & uint32(0x7FFFFFFF)
        exceptions |= uint32(magnitude & uint32(0xFFFF) != 0) & uint32(magnitude < uint32(0x7F800000))
    return bool(exceptions == 0)


@_jit()
def _exact_in_fp16(codes: NDArray[np.uint32]) -> bool:
    values = codes.view(np.float32)
    exceptions = uint32(0)
    for i in range(codes.size):
        magnitude = codes[i] & uint32(0x7FFFFFFF)
        # Below 2^-14 fp16 holds the multiples of 2^-24: adding and subtracting 1.5 * 2^23 rounds to whole ones.
        steps = values[i] * np.float32(2.0**24)
        off_grid = uint32((steps + np.float32(12582912.0)) - np.float32(12582912.0) != steps)
        off_range = uint32(magnitude >= uint32(0x47800000)) | uint32(magnitude & uint32(0x1FFF) != 0)
        small = uint32(magnitude < uint32(0x38800000))
        finite = uint32(magnitude < uint32(0x7F800000))
        exceptions |= finite & ((small & off_grid) | ((small ^ uint32(1)) & off_range))
    return bool(exceptions == 0)


@_jit()
def exact_rows16(codes: NDArray[np.uint16], row: int, need: int) -> int:
    """Count rows of fp16 patterns whose normal values all have the 3 low mantissa bits zero: exact in bf16.

    Otherwise as `exact_rows32`. Subnormals have lost the bits that would tell.
    """
    count = 0
    for start in range(0, codes.size // row * row, row):
        first, end = min(start + 64, start + row), start + row
        exact = _fp16_exact_in_bf16(codes[start:first]) and _fp16_exact_in_bf16(codes[first:end])
        if exact and _informative(codes[start:end], 10, 5, need, 0, 8):
            count += 1
    return count


@_jit()
def _fp16_exact_in_bf16(codes: NDArray[np.uint16]) -> bool:
    exceptions = np.uint16(0)
    for i in range(codes.size):
        magnitude = codes[i] & np.uint16(0x7FFF)
        normal = np.uint16(magnitude >= np.uint16(0x0400)) & np.uint16(magnitude < np.uint16(0x7C00))
        exceptions |= normal & np.uint16(magnitude & np.uint16(7) != 0)
    return bool(exceptions == 0)


@_jit()
def _informative(codes: NDArray[Any], mantissa: int, exponent: int, need: int, beyond: int, last: int) -> bool:
    """Whether ``codes`` hold at least ``need`` different informative magnitudes, spread as those of a float format are.

    Informative are normal values but powers of two; they are told apart by a 64-slot hash. The sign is left out: a value
    and its negative pass a test together, and count as one. With ``beyond`` only codes that have one of these bits count:
    a row of bf16 values and one other is no row of fp16 values. And the ``last`` bit that the narrower format keeps must
    be in use in 4 binades: on an integer grid (dequantized integers, counts) it is in the topmost alone.
    """
    seen = uint64(0)
    binades = uint64(0)
    distinct = 0
    top = (1 << exponent) - 1
    magnitude = (uint64(1) << uint64(mantissa + exponent)) - uint64(1)
    for i in range(codes.size):
        code = uint64(codes[i]) & magnitude
        stored = int64((code >> uint64(mantissa)) & uint64(top))
        if beyond != 0 and code & uint64(beyond) == 0:
            continue
        if stored == 0 or stored == top or code & ((uint64(1) << uint64(mantissa)) - uint64(1)) == 0:
            continue
        if code & uint64(last):
            binades |= uint64(1) << uint64(stored & 63)
        slot = uint64(1) << ((code * uint64(0x9E3779B97F4A7C15)) >> uint64(58))
        if seen & slot == 0:
            seen |= slot
            distinct += 1
        if distinct >= need and _ones(binades, uint64(0)) >= 4:
            return True
    return False


def warm() -> None:
    """Compile every kernel, or load it from numba's cache: so that the first visitor does not wait for it."""
    table = np.zeros((1, 1 << 16), dtype=np.uint32)
    planes = np.zeros((5, 1 << 16), dtype=np.uint32)
    runs = np.zeros(10, dtype=np.int64)
    for code_type in (np.uint16, np.uint32):
        codes = np.arange(256, dtype=code_type)
        mantissa, exponent = (7, 8) if code_type is np.uint16 else (23, 8)
        runs_of_few_significands(codes, 128, 0, mantissa, exponent, 1, runs)
    count16(np.arange(256, dtype=np.uint16), table)
    exact_rows16(np.arange(256, dtype=np.uint16), 128, 8)
    codes32 = np.arange(256, dtype=np.uint32)
    count32(codes32, planes, np.zeros(1 << 19, dtype=np.uint32))
    magnitudes32(codes32)
    exact_rows32(codes32, 128, 8)
    squares(codes32.view(np.float32), 1.0)
    squares(np.zeros(4), 1.0)
