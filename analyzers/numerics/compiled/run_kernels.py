"""The loops over runs of neighbours; `runs` says what is counted."""

from typing import Any

import numpy as np
from numba import int64, uint8, uint64
from numpy.typing import NDArray

from analyzers.numerics.compiled.compiler import jit
from analyzers.numerics.compiled.vector_code import LINE, address, prefetch, room
from analyzers.numerics.runs import (
    ALL_E2M1,
    BLOCK,
    DEEP_4,
    DEEP_8,
    DULL,
    EXACT_SUBNORMAL,
    EXPONENTS_OF_A_RUN,
    FEW_4,
    FEW_8,
    MAGNITUDES_OF_A_RUN,
    MAGNITUDES_OF_A_SHORT_RUN,
    MANY,
    NORMALS_OF_A_RUN,
    OFF_E2M1,
    ON_E2M1,
    PAIR_OFF,
    PAIR_ON,
    RUN,
    SCALED,
    SIGNIFICANDS_OF_FP4,
    SIGNIFICANDS_OF_FP8,
    TELLING_4,
    TELLING_8,
    VALUES_OF_A_BLOCK,
)

_NOTHING = -1
_AHEAD = 4  # runs that are asked for before they are looked at


@jit()
def runs_of_few_significands(
    codes: NDArray[Any], row: int, first: int, mantissa: int, exponent: int, stride: int, out: NDArray[np.int64]
) -> None:
    """Count what runs of 128 neighbours hold, as `runs` describes it.

    A run lies within one row and starts at a multiple of 128 in it; every ``stride``-th run of the tensor is looked
    at. codes: (n,) whole rows; row: elements in a row; first: index of the first row in its tensor; mantissa, exponent:
    bits of each in the stored dtype; out: (RUN_COUNTS,) the counts, added to.
    """
    per_row = (row + RUN - 1) // RUN
    top = uint64((1 << exponent) - 1)
    mantissa_shift = uint64(mantissa)
    significand_shift = uint64(mantissa - 7)
    run = room(uint64, RUN)
    work = room(uint8, 128 + RUN // BLOCK)
    step = -first * per_row % stride  # the first run that is looked at, counted from that of the row
    beyond = uint64(_AHEAD * stride * RUN * codes.itemsize)
    for r in range(codes.size // row):
        for k in range(step, per_row, stride):
            start = r * row + k * RUN
            end = min(start + RUN, (r + 1) * row)
            for line in range(0, RUN * codes.itemsize, LINE):  # of a later run: far away, and long gone from the nearest cache
                prefetch(uint64(address(codes) + uint64(start * codes.itemsize + line) + beyond))
            low = uint64(0)
            high = uint64(0)
            normal = 0
            many = False
            at = start
            while at < end and not many:
                for i in range(at, min(at + 32, end)):  # no branches in here: they would be coin tosses
                    code = uint64(codes[i])
                    stored = (code >> mantissa_shift) & top
                    counts = uint64(stored != 0) & uint64(stored != top)
                    normal += int64(counts)
                    bit = (code >> significand_shift) & uint64(127)
                    upper = bit >> uint64(6)
                    low |= (counts & (upper ^ uint64(1))) << (bit & uint64(63))
                    high |= (counts & upper) << (bit & uint64(63))
                at += 32
                many = normal >= NORMALS_OF_A_RUN and _ones(low) + _ones(high) > SIGNIFICANDS_OF_FP4
            if many:
                out[MANY] += 1
                out[OFF_E2M1] += 1
            elif normal >= NORMALS_OF_A_RUN:
                for i in range(start, end):
                    run[i - start] = uint64(codes[i]) & ((uint64(1) << uint64(mantissa + exponent)) - uint64(1))
                _count(run[: end - start], mantissa, top, work, out)
        step -= per_row
        while step < 0:
            step += stride


@jit()
def _ones(word: Any) -> int:
    """How many bits are set."""
    word -= (word >> uint64(1)) & uint64(0x5555555555555555)
    word = (word & uint64(0x3333333333333333)) + ((word >> uint64(2)) & uint64(0x3333333333333333))
    word = (word + (word >> uint64(4))) & uint64(0x0F0F0F0F0F0F0F0F)
    return int((word * uint64(0x0101010101010101)) >> uint64(56))


@jit()
def _count(run: NDArray[np.uint64], mantissa: int, top: Any, work: NDArray[np.uint8], out: NDArray[np.int64]) -> None:
    """Add a run of at most 16 significands (in 7 bits), given by its magnitudes. work: (136,), overwritten."""
    own = work[128:]
    out[_kind(run, mantissa, top, work[:128], own)] += 1
    before_fits = True
    for k in range((run.size + BLOCK - 1) // BLOCK):
        start = k * BLOCK
        end = min(start + BLOCK, run.size)
        fit, scaled = OFF_E2M1, 0
        if own[k] <= 2:
            fit, scaled = _fit_e2m1(run, start, end, mantissa, top)
        if fit != _NOTHING:
            out[fit] += 1
            out[SCALED] += scaled
        fits = fit in (ON_E2M1, ALL_E2M1)
        if k % 2 == 1 and fits and before_fits:
            both, _ = _fit_e2m1(run, start - BLOCK, end, mantissa, top)
            out[PAIR_OFF if both == OFF_E2M1 else PAIR_ON] += 1
        before_fits = fits


@jit()
def _kind(run: NDArray[np.uint64], mantissa: int, top: Any, numbers: NDArray[np.uint8], own: NDArray[np.uint8]) -> int:
    """What a run is (one of the first six counts of `runs`); also sets own (blocks,) to how many significands each block has.

    numbers: (128,) for the work: significands are numbered from 1 as they come, and found again by their first 7 bits.
    """
    shift = uint64(mantissa)
    fraction = (uint64(1) << shift) - uint64(1)
    fractions = room(uint64, SIGNIFICANDS_OF_FP4 + 1)
    numbers[:] = 0
    known = normal = asked = poor = rich = 0
    alike = False
    depth = depth_to_subnormal = int64(0)
    exponents = low = high = uint64(0)
    for start in range(0, run.size, BLOCK):
        least = lowest = int64(top)
        most = int64(0)
        own_bits = uint64(0)
        own_normal = 0
        for i in range(start, min(start + BLOCK, run.size)):
            stored = run[i] >> shift
            if stored == 0 and run[i] >= EXACT_SUBNORMAL:
                lowest = min(lowest, _bit_length(run[i]) - mantissa)
            if stored == 0 or stored == top:
                continue
            bits = run[i] & fraction
            slot = bits >> uint64(mantissa - 7)
            if numbers[slot] == 0:
                known += 1
                numbers[slot] = known
                fractions[known] = bits
            number = uint64(numbers[slot])
            alike |= fractions[number] != bits
            own_normal += 1
            least, most = min(least, int64(stored)), max(most, int64(stored))
            own_bits |= uint64(1) << number
            exponents |= uint64(1) << (stored & uint64(15))
            bit = uint64(1) << (((number & uint64(3)) << uint64(4)) | (stored & uint64(15)))
            upper = uint64(0) - (number >> uint64(2) & uint64(1))
            low |= bit & ~upper
            high |= bit & upper
        own[start // BLOCK] = _ones(own_bits)
        normal += own_normal
        if own_normal > 0:
            depth = max(depth, most - least)
            depth_to_subnormal = max(depth_to_subnormal, most - min(least, lowest))
        if own_normal >= VALUES_OF_A_BLOCK:
            asked += 1
            poor += int(_ones(own_bits) < 3)
            rich += int(_ones(own_bits) > 4)
    if known > SIGNIFICANDS_OF_FP8 or alike:
        return MANY
    need = MAGNITUDES_OF_A_RUN if normal == RUN else MAGNITUDES_OF_A_SHORT_RUN
    if known < 3 or _ones(low) + _ones(high) < need or _ones(exponents) < EXPONENTS_OF_A_RUN:
        return DULL
    if known <= 4:
        return TELLING_4 if asked > 0 and poor == 0 and depth_to_subnormal >= DEEP_4 else FEW_4
    return TELLING_8 if rich > 0 and poor == 0 and depth >= DEEP_8 else FEW_8


@jit()
def _bit_length(word: Any) -> int:
    length = 0
    while word != 0:
        word >>= uint64(1)
        length += 1
    return length


@jit()
def _fit_e2m1(run: NDArray[np.uint64], start: int, end: int, mantissa: int, top: Any) -> Any:
    """How run[start:end] fits E2M1 times one t (-1 where that cannot be asked), and whether it does with a t that is no power of two.

    t, 2 t, 4 t and 8 t have one significand, 3 t, 6 t and 12 t another, which is 3/2 of it or, where that reaches 2, 3/4.
    """
    shift = uint64(mantissa)
    one = uint64(1) << shift
    fractions = 0
    a = b = uint64(0)
    a_low = a_high = b_low = b_high = int64(0)
    special = False
    for i in range(start, end):
        if run[i] == 0:
            continue
        stored = int64(run[i] >> shift)
        if stored == 0 or stored == int64(top):
            special = True
            continue
        bits = run[i] & (one - uint64(1))
        if fractions == 0:
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
    half = one >> uint64(1)
    scaled = int64(a != 0 and a != half)
    if fractions == 1:
        return (ON_E2M1, scaled) if a_high - a_low <= 3 else (OFF_E2M1, 0)
    scaled |= int64(b != 0 and b != half)
    if a > b:
        a, a_low, a_high, b, b_low, b_high = b, b_low, b_high, a, a_low, a_high
    if _near(2 * int(one + b), 3 * int(one + a)):
        two_low, two_high, three_low, three_high = a_low, a_high, b_low, b_high
    elif _near(3 * int(one + b), 4 * int(one + a)):
        two_low, two_high, three_low, three_high = b_low, b_high, a_low - 1, a_high - 1
    else:
        return OFF_E2M1, 0
    if max(two_high, three_high) - 3 > min(two_low, three_low - 1):
        return OFF_E2M1, 0
    return (ALL_E2M1 if three_high - two_low == 3 else ON_E2M1), scaled


@jit()
def _near(one: int, other: int) -> bool:
    """Whether two multiples of significands are equal but for roundings to bf16, perhaps by way of fp32."""
    return abs(one - other) <= (other >> 7) + (other >> 9)
