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
rounding), ``ON_E2M1`` (they are), or ``ALL_E2M1`` (they are, and reach from t to 12 t, so that t is known). A block of zeros
is none of these; nor is one with a subnormal or nonfinite value, unless its other values are off the grid. Of a run with more
than 16 significands, in their first 7 bits, one block is counted, as ``OFF_E2M1``: such values are native, which 32 of them
are enough to tell.

A run is also counted as ``FIXED_BF16``, ``FIXED_FP16`` or ``FIXED_FP32`` where its normal values are all multiples of one step and below
2^8, 2^11 or 2^24 steps: integers or fixed point that those formats hold whatever the scale of the run is. It may be several of these.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

MANY, DULL, FEW_4, FEW_8, TELLING_4, TELLING_8 = range(6)
OFF_E2M1, ON_E2M1, ALL_E2M1 = range(6, 9)
FIXED_BF16, FIXED_FP16, FIXED_FP32 = range(9, 12)
RUN_COUNTS = 12

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


def runs_of_few_significands(
    codes: NDArray[Any], row: int, first: int, mantissa: int, exponent: int, stride: int, out: NDArray[np.int64]
) -> None:
    """Count the kinds of runs of 128 neighbours (see the module).

    A run lies within one row and starts at a multiple of 128 in it; every ``stride``-th run of the tensor is examined. codes: (n,) whole
    rows; row: elements in a row; first: index of the first row in its tensor; mantissa, exponent: bits of each in the stored dtype; out:
    (RUN_COUNTS,) the counts to add to.
    """
    per_row = -(-row // RUN)
    begin = -first * per_row % stride
    examined = -(-max(codes.size // row * per_row - begin, 0) // stride)
    few, sizes = np.empty((examined, RUN), dtype=np.int64), np.empty(examined, dtype=np.int64)
    number = _survey(codes, row, begin, stride, mantissa, exponent, few, sizes, out)
    if number:  # native values compile no more than the survey
        _count(few[:number], sizes[:number], mantissa, (1 << exponent) - 1, out)


@njit(nogil=True, cache=True, error_model="numpy")
def _survey(
    codes: NDArray[Any], row: int, begin: int, stride: int, mantissa: int, exponent: int, few: NDArray[np.int64], sizes: NDArray[np.int64],
    out: NDArray[np.int64],
) -> int:  # fmt: skip
    """Count runs of many significands, and of fixed point; copy the magnitudes of the others.

    begin: number of the first run that is examined; few (runs, 128), sizes (runs,): the magnitudes in runs of at most 16 significands (in 7
    bits), and how many they are. Returns the number of these runs.
    """
    top, every_bit = (1 << exponent) - 1, (1 << (mantissa + exponent)) - 1
    per_row = (row + RUN - 1) // RUN
    seen = np.zeros(128, dtype=np.int64)  # the last run, numbered from 1 on, in which a significand occurs
    found = 0
    for number in range(begin, codes.size // row * per_row, stride):
        start = number // per_row * row + number % per_row * RUN
        size = min(RUN, row - number % per_row * RUN)
        normal = significands = highest = 0
        lowest: Any = top
        for i in range(size):
            magnitude: Any = np.int64(codes[start + i]) & every_bit
            few[found, i] = magnitude
            stored = magnitude >> mantissa
            if 0 < stored < top:
                normal += 1
                bits = (magnitude >> (mantissa - 7)) & 127
                significands += seen[bits] != number + 1
                seen[bits] = number + 1
                if highest - lowest < 24:
                    whole, unused = (magnitude & ((1 << mantissa) - 1)) | (1 << mantissa), 0
                    while whole & 1 == 0:
                        whole, unused = whole >> 1, unused + 1
                    highest, lowest = max(highest, stored), min(lowest, stored - mantissa + unused)
                elif normal >= NORMALS_OF_A_RUN and significands > SIGNIFICANDS_OF_FP4:
                    break  # nothing more to learn
        if normal >= NORMALS_OF_A_RUN:
            used = highest - lowest + 1
            out[FIXED_BF16] += used <= 8
            out[FIXED_FP16] += used <= 11
            out[FIXED_FP32] += used <= 24
            if significands > SIGNIFICANDS_OF_FP4:
                out[MANY] += 1
                out[OFF_E2M1] += 1
            else:
                sizes[found] = size
                found += 1
    return found


@njit(nogil=True, cache=True, error_model="numpy")
def _count(runs: NDArray[np.int64], sizes: NDArray[np.int64], mantissa: int, top: int, out: NDArray[np.int64]) -> None:
    """Count runs of at most 16 significands (in 7 bits), given by their magnitudes."""
    own = np.zeros(RUN // BLOCK, dtype=np.int64)
    for r in range(sizes.size):
        run, size = runs[r], sizes[r]
        out[_kind(run, size, mantissa, top, own)] += 1
        for k in range((size + BLOCK - 1) // BLOCK):
            fit = _fit_e2m1(run, k * BLOCK, min((k + 1) * BLOCK, size), mantissa, top) if own[k] <= 2 else OFF_E2M1
            if fit != _NOTHING:
                out[fit] += 1


@njit(nogil=True, cache=True, error_model="numpy")
def _kind(run: NDArray[np.int64], size: int, mantissa: int, top: int, own: NDArray[np.int64]) -> int:
    """Return the kind of a run (one of the first six counts); also set own (blocks,) to the number of significands in each block.

    Significands are numbered from 1 in the order of their first occurrence, and distinguished by their first 7 bits.
    """
    numbers = np.zeros(128, dtype=np.int64)
    fractions = np.zeros(SIGNIFICANDS_OF_FP4 + 1, dtype=np.int64)
    different = np.zeros(SIGNIFICANDS_OF_FP4 + 1, dtype=np.int64)  # bits of exponents modulo 16, by significand
    known: Any = np.int64(0)  # for a literal, `_equal_steps` would be compiled once more
    normal = asked = poor = rich = depth = depth_to_subnormal = magnitudes = exponents = 0
    alike = False
    for start in range(0, size, BLOCK):
        least = lowest = top
        most = own_normal = significands = present = 0
        for i in range(start, min(start + BLOCK, size)):
            magnitude = run[i]
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
            number, exponent = numbers[slot], 1 << (stored & 15)
            alike |= fractions[number] != bits
            own_normal += 1
            least, most = min(least, stored), max(most, stored)
            significands += present >> number & 1 == 0
            present |= 1 << number
            magnitudes += different[number] & exponent == 0
            different[number] |= exponent
            exponents |= exponent
        own[start // BLOCK] = significands
        normal += own_normal
        if own_normal > 0:
            depth = max(depth, most - least)
            depth_to_subnormal = max(depth_to_subnormal, most - min(least, lowest))
        if own_normal >= VALUES_OF_A_BLOCK:
            asked += 1
            poor += significands < 3
            rich += significands > 4
    if known > SIGNIFICANDS_OF_FP8 or alike:
        return MANY
    need = MAGNITUDES_OF_A_RUN if normal == RUN else MAGNITUDES_OF_A_SHORT_RUN
    of_exponents = 0
    for exponent in range(16):
        of_exponents += exponents >> exponent & 1
    if known < 3 or magnitudes < need or of_exponents < EXPONENTS_OF_A_RUN or not _equal_steps(fractions, known, mantissa):
        return DULL
    if known <= 4:
        return TELLING_4 if asked > 0 and poor == 0 and depth_to_subnormal >= DEEP_4 else FEW_4
    return TELLING_8 if rich > 0 and poor == 0 and depth >= DEEP_8 else FEW_8


@njit(nogil=True, cache=True, error_model="numpy")
def _equal_steps(fractions: NDArray[np.int64], known: int, mantissa: int) -> bool:
    """Return whether one scale turns all significands into multiples of 1/8 from 1 to 2, the first exactly, the others up to rounding.

    fractions: those of significands 1 to ``known``.
    """
    first = (1 << mantissa) + fractions[1]
    for eighths in range(8, 16):
        fits = True
        for number in range(1, known + 1):
            steps = ((1 << mantissa) + fractions[number]) * eighths
            near = False
            for other in range(8, 16):
                near |= _near(steps, first * other) or _near(2 * steps, first * other) or _near(steps, 2 * first * other)
            fits &= near
        if fits:
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
def _fit_e2m1(run: NDArray[np.int64], start: int, end: int, mantissa: int, top: int) -> int:
    """Return how magnitudes of a run fit E2M1 times one t, -1 if that cannot be tested.

    t, 2 t, 4 t and 8 t have one significand, 3 t, 6 t and 12 t another, which is 3/2 of it or, where that reaches 2, 3/4.
    """
    one = 1 << mantissa
    fractions = a = b = a_low = a_high = b_low = b_high = 0
    special = False
    for i in range(start, end):
        magnitude = run[i]
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
            return OFF_E2M1
    if fractions == 0 or special:
        return _NOTHING
    if fractions == 1:
        return ON_E2M1 if a_high - a_low <= 3 else OFF_E2M1
    if a > b:
        a, a_low, a_high, b, b_low, b_high = b, b_low, b_high, a, a_low, a_high
    if _near(2 * (one + b), 3 * (one + a)):
        two_low, two_high, three_low, three_high = a_low, a_high, b_low, b_high
    elif _near(3 * (one + b), 4 * (one + a)):
        two_low, two_high, three_low, three_high = b_low, b_high, a_low - 1, a_high - 1
    else:
        return OFF_E2M1
    if max(two_high, three_high) - 3 > min(two_low, three_low - 1):
        return OFF_E2M1
    return ALL_E2M1 if three_high - two_low == 3 else ON_E2M1


@njit(nogil=True, cache=True)
def _near(one: int, other: int) -> bool:
    """Return whether two multiples of significands are equal up to rounding to bf16, possibly via fp32."""
    return abs(one - other) <= (other >> 7) + (other >> 9)
