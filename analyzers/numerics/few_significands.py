"""Finds evidence of an fp8 or fp4 ancestor in neighbouring weights, by counts over runs of 128.

Values of a scaled 8- or 4-bit float format that share a scale have only the few significands of that format, since
scaling and rounding change a significand alike in every binade. A run is 128 neighbours (fewer at the end of a row)
with at least 32 normal values; subnormal values have lost the bits that would distinguish them.

Each run is one of:

- ``MANY``: more than 8 different significands. No run of an fp8 ancestor has that.
- ``DULL``: at most 8, but not those of fp8 (equal steps of a binade, up to rounding), as powers of the fourth root of 2 are, or too few
  different values, or values too close to each other, to tell a floating grid from anything: constants, norms near 1, ternary and 4-bit
  weights with one scale, repeats.
- ``FEW_4``, ``FEW_8``: at most 4 (as of E5M2), or 5 to 8 (as of E4M3), but within reach of an integer grid.
- ``TELLING_4``, ``TELLING_8``: the same, with a block of 16 that spans more binades (``DEEP_4``, ``DEEP_8``) than any grid of
  integers up to 127 or any 6-bit float can. All its blocks of 16 have at least 3 significands, unlike those of 4-bit floats;
  and if the run has more than 4, so has a block, or it could be E5M2 with several scales.

Each block of 16 of these runs is one of ``OFF_E2M1`` (its magnitudes are not t x {1, 2, 3, 4, 6, 8, 12} for any t, up to
rounding), ``ON_E2M1`` (they are), or ``ALL_E2M1`` (they are, and reach from t to 12 t, so that t is known). ``SCALED``
counts the latter two if t is not a power of two. Each pair of such blocks is ``PAIR_OFF`` or ``PAIR_ON``: whether one t fits
both. A block of zeros is none of these; nor is one with a subnormal or nonfinite value, unless its other values are off the
grid. Of a run with more than 16 significands, in their first 7 bits, one block is counted, as ``OFF_E2M1``: such values are
native, which 32 of them are enough to tell.

A run is also counted as ``FIXED_BF16``, ``FIXED_FP16`` or ``FIXED_FP32`` where its normal values are all multiples of one step and below
2^8, 2^11 or 2^24 steps: integers or fixed point that those formats hold whatever the scale of the run is. It may be several of these.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

MANY, DULL, FEW_4, FEW_8, TELLING_4, TELLING_8 = range(6)
OFF_E2M1, ON_E2M1, ALL_E2M1, SCALED, PAIR_OFF, PAIR_ON = range(6, 12)
FIXED_BF16, FIXED_FP16, FIXED_FP32 = range(12, 15)
RUN_COUNTS = 15

RUN = 128
BLOCK = 16
NORMALS_OF_A_RUN = 32
SIGNIFICANDS_OF_FP8 = 8

# A run of 16 scaled E2M1 blocks, with scales in fp8, has at most 13 significands; a native run exceeds that within 32 values.
SIGNIFICANDS_OF_FP4 = 16

# Fewer different magnitudes occur in a 4-bit format, or in repeats. A run that is cut short by the end of the row has fewer.
MAGNITUDES_OF_A_RUN = 20
MAGNITUDES_OF_A_SHORT_RUN = 12
EXPONENTS_OF_A_RUN = 6

# Binades from the largest value of a block of 16 to the smallest. int8 (127 to 1) has 7 at most, the 6-bit format E2M3 (60 to 1) has 6. The
# other 6-bit format, E3M2 (448 to 1), has 9 and, like E5M2, no more than 4 significands.
DEEP_8 = 8
DEEP_4 = 10

# For ``DEEP_4``, subnormal values of this many steps count too. They were rounded by 1/16 at most, which leaves 448 to 1 within 9 binades.
# It would not leave 127 to 1 within 7, so they do not count for ``DEEP_8``.
EXACT_SUBNORMAL = 8

# Fewest normal values of a block that is tested: with this many, 4 significands almost never show as fewer than 3.
VALUES_OF_A_BLOCK = 8

_NOTHING = -1  # a block that cannot be tested


@njit(nogil=True, cache=True)
def runs_of_few_significands(
    codes: NDArray[Any], row: int, first: int, mantissa: int, exponent: int, stride: int, out: NDArray[np.int64]
) -> None:
    """Count the kinds of runs of 128 neighbours (see the module).

    A run lies within one row and starts at a multiple of 128 in it; every ``stride``-th run of the tensor is examined. codes: (n,) whole
    rows; row: elements in a row; first: index of the first row in its tensor; mantissa, exponent: bits of each in the stored dtype; out:
    (RUN_COUNTS,) the counts to add to.
    """
    per_row = -(-row // RUN)
    top, every_bit = (1 << exponent) - 1, (1 << (mantissa + exponent)) - 1
    magnitudes = np.empty(RUN, dtype=np.int64)
    for r in range(codes.size // row):
        for k in range(-(first + r) * per_row % stride, per_row, stride):
            start = r * row + k * RUN
            size = min(RUN, row - k * RUN)
            for i in range(size):
                magnitudes[i] = np.int64(codes[start + i]) & every_bit
            normal, many = _survey(magnitudes[:size], mantissa, top)
            if many:
                out[MANY] += 1
                out[OFF_E2M1] += 1
            elif normal >= NORMALS_OF_A_RUN:
                _count(magnitudes[:size], mantissa, top, out)
            if normal >= NORMALS_OF_A_RUN:
                bits = _bits_in_use(magnitudes[:size], mantissa, top)
                out[FIXED_BF16] += bits <= 8
                out[FIXED_FP16] += bits <= 11
                out[FIXED_FP32] += bits <= 24


@njit(nogil=True, cache=True)
def _bits_in_use(run: NDArray[np.int64], mantissa: int, top: int) -> int:
    """Return the number of bits from the highest to the lowest in use among the normal values; stops beyond 24."""
    highest, lowest = 0, top
    for magnitude in run:
        stored = magnitude >> mantissa
        if stored == 0 or stored == top:
            continue
        whole = (magnitude & ((1 << mantissa) - 1)) | (1 << mantissa)
        highest = max(highest, stored)
        lowest = min(lowest, stored - mantissa + _bit_length(whole & -whole) - 1)
        if highest - lowest >= 24:
            break
    return highest - lowest + 1


@njit(nogil=True, cache=True)
def _survey(run: NDArray[np.int64], mantissa: int, top: int) -> tuple[int, bool]:
    """Return the number of normal values, and whether there are too many significands (in 7 bits); stops as soon as there are."""
    seen = np.zeros(128, dtype=np.bool_)
    normal = significands = 0
    for start in range(0, run.size, 32):
        for magnitude in run[start : start + 32]:
            stored = magnitude >> mantissa
            if 0 < stored < top:
                normal += 1
                bits = (magnitude >> (mantissa - 7)) & 127
                significands += not seen[bits]
                seen[bits] = True
        if normal >= NORMALS_OF_A_RUN and significands > SIGNIFICANDS_OF_FP4:
            return normal, True
    return normal, False


@njit(nogil=True, cache=True)
def _count(run: NDArray[np.int64], mantissa: int, top: int, out: NDArray[np.int64]) -> None:
    """Count a run of at most 16 significands (in 7 bits), given by its magnitudes."""
    own = np.zeros(RUN // BLOCK, dtype=np.int64)
    out[_kind(run, mantissa, top, own)] += 1
    before_fits = True
    for k in range(-(-run.size // BLOCK)):
        start, end = k * BLOCK, min((k + 1) * BLOCK, run.size)
        fit, scaled = OFF_E2M1, 0
        if own[k] <= 2:
            fit, scaled = _fit_e2m1(run[start:end], mantissa, top)
        if fit != _NOTHING:
            out[fit] += 1
            out[SCALED] += scaled
        fits = fit in (ON_E2M1, ALL_E2M1)
        if k % 2 == 1 and fits and before_fits:
            both, _ = _fit_e2m1(run[start - BLOCK : end], mantissa, top)
            out[PAIR_OFF if both == OFF_E2M1 else PAIR_ON] += 1
        before_fits = fits


@njit(nogil=True, cache=True)
def _kind(run: NDArray[np.int64], mantissa: int, top: int, own: NDArray[np.int64]) -> int:
    """Return the kind of a run (one of the first six counts); also set own (blocks,) to the number of significands in each block.

    Significands are numbered from 1 in the order of their first occurrence, and distinguished by their first 7 bits.
    """
    numbers = np.zeros(128, dtype=np.int64)
    fractions = np.zeros(SIGNIFICANDS_OF_FP4 + 1, dtype=np.int64)
    different = np.zeros((SIGNIFICANDS_OF_FP4 + 1, 16), dtype=np.bool_)  # by significand and exponent modulo 16
    known = normal = asked = poor = rich = depth = depth_to_subnormal = 0
    alike = False
    for start in range(0, run.size, BLOCK):
        least = lowest = top
        most = own_normal = 0
        present = np.zeros(SIGNIFICANDS_OF_FP4 + 1, dtype=np.bool_)
        for magnitude in run[start : start + BLOCK]:
            stored, bits = magnitude >> mantissa, magnitude & ((1 << mantissa) - 1)
            if stored == 0 and magnitude >= EXACT_SUBNORMAL:
                lowest = min(lowest, _bit_length(magnitude) - mantissa)
            if stored == 0 or stored == top:
                continue
            slot = bits >> (mantissa - 7)
            if numbers[slot] == 0:
                known += 1
                numbers[slot] = known
                fractions[known] = bits
            number = numbers[slot]
            alike |= fractions[number] != bits
            own_normal += 1
            least, most = min(least, stored), max(most, stored)
            present[number] = True
            different[number, stored & 15] = True
        own[start // BLOCK] = np.count_nonzero(present)
        normal += own_normal
        if own_normal > 0:
            depth = max(depth, most - least)
            depth_to_subnormal = max(depth_to_subnormal, most - min(least, lowest))
        if own_normal >= VALUES_OF_A_BLOCK:
            asked += 1
            poor += own[start // BLOCK] < 3
            rich += own[start // BLOCK] > 4
    if known > SIGNIFICANDS_OF_FP8 or alike:
        return MANY
    exponents: Any = 0
    for exponent in range(16):
        exponents += different[:, exponent].any()
    need = MAGNITUDES_OF_A_RUN if normal == RUN else MAGNITUDES_OF_A_SHORT_RUN
    if known < 3 or np.count_nonzero(different) < need or exponents < EXPONENTS_OF_A_RUN:
        return DULL
    if not _equal_steps(fractions[1 : known + 1], mantissa):
        return DULL
    if known <= 4:
        return TELLING_4 if asked > 0 and poor == 0 and depth_to_subnormal >= DEEP_4 else FEW_4
    return TELLING_8 if rich > 0 and poor == 0 and depth >= DEEP_8 else FEW_8


@njit(nogil=True, cache=True)
def _equal_steps(fractions: NDArray[np.int64], mantissa: int) -> bool:
    """Return whether one scale turns all significands into multiples of 1/8 from 1 to 2, the first exactly, the others up to rounding."""
    for eighths in range(8, 16):
        fits = 0
        for fraction in fractions:
            steps = ((1 << mantissa) + fraction) * eighths
            first = (1 << mantissa) + fractions[0]
            near = False
            for other in range(8, 16):
                near |= _near(steps, first * other) or _near(2 * steps, first * other) or _near(steps, 2 * first * other)
            fits += near
        if fits == fractions.size:
            return True
    return False


@njit(nogil=True, cache=True)
def _bit_length(word: int) -> int:
    length = 0
    while word != 0:
        word >>= 1
        length += 1
    return length


@njit(nogil=True, cache=True)
def _fit_e2m1(block: NDArray[np.int64], mantissa: int, top: int) -> tuple[int, int]:
    """Return how magnitudes fit E2M1 times one t (-1 if that cannot be tested), and whether t is not a power of two.

    t, 2 t, 4 t and 8 t have one significand, 3 t, 6 t and 12 t another, which is 3/2 of it or, where that reaches 2, 3/4.
    """
    one = 1 << mantissa
    fractions = a = b = a_low = a_high = b_low = b_high = 0
    special = False
    for magnitude in block:
        if magnitude == 0:
            continue
        stored, bits = magnitude >> mantissa, magnitude & (one - 1)
        if stored == 0 or stored == top:
            special = True
        elif fractions == 0:
            fractions, a, a_low, a_high = 1, bits, stored, stored
        elif bits == a:
            a_low, a_high = min(a_low, stored), max(a_high, stored)
        elif fractions == 1:
            fractions, b, b_low, b_high = 2, bits, stored, stored
        elif bits == b:
            b_low, b_high = min(b_low, stored), max(b_high, stored)
        else:
            return OFF_E2M1, 0
    if fractions == 0 or special:
        return _NOTHING, 0
    half = one >> 1
    scaled = int(a != 0 and a != half)
    if fractions == 1:
        return (ON_E2M1, scaled) if a_high - a_low <= 3 else (OFF_E2M1, 0)
    scaled |= int(b != 0 and b != half)
    if a > b:
        a, a_low, a_high, b, b_low, b_high = b, b_low, b_high, a, a_low, a_high
    if _near(2 * (one + b), 3 * (one + a)):
        two_low, two_high, three_low, three_high = a_low, a_high, b_low, b_high
    elif _near(3 * (one + b), 4 * (one + a)):
        two_low, two_high, three_low, three_high = b_low, b_high, a_low - 1, a_high - 1
    else:
        return OFF_E2M1, 0
    if max(two_high, three_high) - 3 > min(two_low, three_low - 1):
        return OFF_E2M1, 0
    return (ALL_E2M1 if three_high - two_low == 3 else ON_E2M1), scaled


@njit(nogil=True, cache=True)
def _near(one: int, other: int) -> bool:
    """Return whether two multiples of significands are equal up to rounding to bf16, possibly via fp32."""
    return abs(one - other) <= (other >> 7) + (other >> 9)
