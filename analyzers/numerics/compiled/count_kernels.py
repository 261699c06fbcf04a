"""The loops over the bits of one checkpoint.

Legend: ``codes`` are the stored patterns as unsigned integers, one per element. The 32-bit histogram is indexed by
(plane, high half), where the plane tells how many low bits are zero: 0 for fewer than 13, then exactly 13, 14, 15,
and 4 for 16 or more. That is what a 16-bit histogram would lose: with it, every question "is this value exact in a
format of at most 10 mantissa bits?" is a lookup.

Operations on narrow integers are cast back to their type: numba makes 64 bits of them, of which fewer fit into a vector.
"""

from typing import Any

import numpy as np
from numba import float64, int64, uint16, uint32, uint64
from numpy.typing import NDArray

from analyzers.numerics.alike import ALIKE, Alike
from analyzers.numerics.compiled.compiler import jit
from analyzers.numerics.compiled.count_passes import (
    ALIKE_GROUP,
    BLOCK,
    STRETCH,
    WINDOW16,
    WINDOW32,
    alike_bf16,
    alike_fp16,
    native32,
)
from analyzers.numerics.compiled.vector_code import AVX512, LINE, address, flat, prefetch, room

_MASK16 = np.uint64(0xFFFF)

# Bytes beyond what is counted that are asked for meanwhile: weights come from memory, and the machine itself does not look beyond a page.
_AHEAD = 4096


# Elements that are looked at to say where most exponents of the next `STRETCH` are.
_SAMPLE = 256

# Of the window of exponents compared with, those below the mean one: of values spread as a normal distribution, one in 60 is outside
# 8 exponents, and one in 10,000 outside 16.
_BELOW16, _BELOW32 = 4, 11


@jit()
def count16(codes: NDArray[np.uint16], bins: NDArray[np.uint32]) -> None:
    """Add how often each 16-bit pattern occurs in ``codes`` (n,) to ``bins`` (65536,). None may pass 2^32 - 1."""
    here = address(codes)
    words = codes[: codes.size // 32 * 32].view(np.uint64)
    for line in range(codes.size // 32):
        prefetch(uint64(here + uint64(LINE * line + _AHEAD)))
        for i in range(8 * line, 8 * line + 8):  # one load for four elements; the stores are what limits this loop
            four = words[i]
            bins[four & _MASK16] += uint32(1)
            bins[(four >> uint64(16)) & _MASK16] += uint32(1)
            bins[(four >> uint64(32)) & _MASK16] += uint32(1)
            bins[four >> uint64(48)] += uint32(1)
    for i in range(4 * words.size, codes.size):
        bins[codes[i]] += uint32(1)


@jit()
def _first_exponent(codes: Any, shift: int, below: int, window: int, first: int, last: int, low: int) -> Any:
    """The first of ``window`` stored exponents that most of the patterns with one of their ``low`` bits set have; 0 where few are such.

    shift: bits below the exponent; first, last: between which it may be; below: how many are to lie below the mean one.
    """
    if not AVX512:
        return 0
    total = count = uint32(0)
    for i in range(codes.size):
        exponent = uint32(uint32(codes[i]) >> uint32(shift)) & uint32(last + 1)
        total = uint32(total + exponent)
        count = uint32(count + uint32(exponent != uint32(0)))
    if count == 0:
        return 0
    mean: Any = int64(total) // int64(count)
    start = min(max(mean - below, first), last + 1 - window)
    inside = uint32(0)
    for i in range(codes.size):
        exponent = uint32(uint32(codes[i]) >> uint32(shift)) & uint32(last + 1)
        here = uint32(uint32(exponent - uint32(start)) < uint32(window)) & uint32(uint32(uint32(codes[i]) & uint32(low)) != uint32(0))
        inside = uint32(inside + here)
    return start if 2 * int64(inside) >= codes.size else 0


def _count_alike(kind: Alike, alike: Any) -> Any:
    """`count_bf16` or `count_fp16`."""
    mantissa, first, last, low = kind.mantissa, kind.first, kind.last, kind.low

    @jit()
    def count(codes: NDArray[np.uint16], table: NDArray[np.uint32], beside: NDArray[np.int64]) -> None:
        """Count the patterns ``codes`` (n,): in ``table`` (1, 65536), and most of those that are `alike` in ``beside`` (3, 256) alone.

        Added to ``beside``: [0] how many of each stored exponent; [1] the squares of their significands, in units of that of an exponent
        not above theirs; and [2, :2] becomes the smallest and the largest of their magnitudes' patterns and of those it held.
        """
        bins = table[0]
        others = room(uint16, STRETCH + LINE)
        for start in range(0, codes.size, STRETCH):
            stretch = codes[start : start + STRETCH]
            window = _first_exponent(stretch[:_SAMPLE], mantissa, _BELOW16, WINDOW16, first, last, low)
            if window == 0:
                count16(stretch, bins)
                continue
            whole = stretch.size // ALIKE_GROUP
            places = address(beside) + uint64(8 * window)
            held, most, least = alike(address(stretch), whole, window, address(others), places, places + uint64(8 * beside.shape[1]))
            if most >= 0:
                lowest = window << (mantissa + 1)
                beside[2, 0] = min(beside[2, 0], (least + lowest) >> 1)
                beside[2, 1] = max(beside[2, 1], (most + lowest) >> 1)
            count16(others[:held], bins)
            count16(stretch[whole * ALIKE_GROUP :], bins)

    return count


count_bf16 = _count_alike(ALIKE["BF16"], alike_bf16)
count_fp16 = _count_alike(ALIKE["F16"], alike_fp16)


@jit(inline="always")
def _plane_and_high_half(code: Any) -> Any:
    plane = uint32((code & uint32(0x1FFF)) == 0)
    plane += uint32((code & uint32(0x3FFF)) == 0)
    plane += uint32((code & uint32(0x7FFF)) == 0)
    plane += uint32((code & uint32(0xFFFF)) == 0)
    return (plane << uint32(16)) | (code >> uint32(16))


@jit(inline="always")
def _place_block(block: NDArray[np.uint32], planes: NDArray[np.uint32], fine: NDArray[np.uint32]) -> tuple[int, Any]:
    """Count a block of 64 fp32 patterns. Returns whether it went to ``fine``, and all bits of all patterns.

    In most files all values of a block are of one kind: no low 13 bits all zero (native), all low 16 bits zero (were bf16), or all low
    13 bits zero (were fp16).
    """
    least = uint32(0x1FFF)
    any_bits = uint32(0)
    for i in range(64):
        least = min(least, uint32(block[i] & uint32(0x1FFF)))
        any_bits = uint32(any_bits | block[i])
    if least != 0:
        for i in range(64):
            planes[block[i] >> uint32(16)] += uint32(1)
    elif any_bits & uint32(0xFFFF) == 0:
        for i in range(64):
            planes[uint32(4 << 16) + (block[i] >> uint32(16))] += uint32(1)
    elif any_bits & uint32(0x1FFF) == 0:
        for i in range(64):
            fine[block[i] >> uint32(13)] += uint32(1)
        return 1, any_bits
    else:
        for i in range(64):
            planes[_plane_and_high_half(block[i])] += uint32(1)
    return 0, any_bits


@jit(fastmath={"reassoc", "contract"})
def _magnitudes(codes: NDArray[np.uint32]) -> tuple[Any, Any, float]:
    """(the smallest |pattern| minus 1, with zeros on top, the largest, sum of squares in float64) of fp32 patterns."""
    low, high, squared = uint32(0xFFFFFFFF), uint32(0), 0.0
    for i in range(codes.size):
        magnitude = uint32(codes[i] & uint32(0x7FFFFFFF))
        high = max(high, magnitude)
        low = min(low, uint32(magnitude - uint32(1)))  # as unsigned: zero goes to the top, where the minimum ignores it
    values = codes.view(np.float32)
    for i in range(codes.size):
        x = float64(values[i])
        squared += x * x
    return low, high, squared


@jit()
def count32(
    codes: NDArray[np.uint32], counts: NDArray[np.uint32], fine: NDArray[np.uint32], beside: NDArray[np.int64]
) -> tuple[int, int, int, float, bool]:
    """Add the (plane, high half) of each fp32 pattern in ``codes`` (n,) to ``counts`` (5, 65536), or those that are `alike` to ``beside``.

    Returns how many blocks went to ``fine``; the smallest nonzero and the largest |pattern|, which orders like |value|, NaN and infinities
    included, (2^32 - 1, 0) when all are zero; the sum of squares in float64, not finite where a value is not; and whether no pattern has
    any of the 16 low bits, all being exact in bf16.

    fine: (2^19,) the histogram of the 19 high bits, which `accumulator.fold_fine` adds to ``counts``: blocks of values that were fp16
    go there. beside: (3, 256), of which row 0 has how many there are of each stored exponent.
    """
    planes = flat(counts)
    left = room(int64, STRETCH // BLOCK + 1)
    fine_blocks, bits = 0, uint32(0)
    low, high, squared = int64(0xFFFFFFFF), int64(0), 0.0
    for start in range(0, codes.size, STRETCH):
        stretch = codes[start : start + STRETCH]
        exponent = _first_exponent(stretch[:_SAMPLE], 23, _BELOW32, WINDOW32, 1, 254, 0x1FFF)
        end = stretch.size // ALIKE_GROUP * ALIKE_GROUP if exponent != 0 else 0
        if end != 0:
            there = address(beside) + uint64(8 * exponent)
            held, most, least, square = native32(address(stretch), end // ALIKE_GROUP, exponent, address(left), there)
            low, high, squared = min(low, least), max(high, most), squared + square
            for number in left[:held]:
                to_fine, found = _place_block(stretch[number * BLOCK : (number + 1) * BLOCK], planes, fine)
                fine_blocks, bits = fine_blocks + to_fine, uint32(bits | found)
            bits = uint32(bits | uint32(held * BLOCK < end))  # what is alike has low bits
        if end < stretch.size:
            others = stretch[end:]
            least, most, square = _magnitudes(others)
            low, high, squared = min(low, int64(least)), max(high, int64(most)), squared + square
            for number in range(others.size // BLOCK):
                for line in range(0, 4 * BLOCK, LINE):  # of the stretch that is next
                    prefetch(uint64(address(others) + uint64(4 * (number * BLOCK + STRETCH) + line)))
                to_fine, found = _place_block(others[number * BLOCK : (number + 1) * BLOCK], planes, fine)
                fine_blocks, bits = fine_blocks + to_fine, uint32(bits | found)
            for i in range(others.size // BLOCK * BLOCK, others.size):
                planes[_plane_and_high_half(others[i])] += uint32(1)
                bits = uint32(bits | others[i])
    narrow = bits & uint32(0xFFFF) == uint32(0)
    return fine_blocks, int(low) + 1 if low != 0xFFFFFFFF else 0xFFFFFFFF, int(high), squared, narrow


@jit()
def take_counts(
    table: NDArray[np.uint32], beside: NDArray[np.int64], kind: Any, index: NDArray[np.int64], counts: NDArray[np.int64]
) -> int:
    """Set ``index`` and ``counts`` to the occupied bins of ``table`` (planes, n), ascending, and to what they hold; clears the table.

    Returns how many there are. What is `alike` in plane 0, there and in ``beside``, comes in one bin for each exponent; kind: (mantissa,
    first, last, low, exact), `Alike`'s numbers, or zeros. Where ``exact``, of 16-bit patterns, ``beside`` is told squares and ends of the
    finite ones in the table, as `count_bf16` does.
    """
    mantissa, first, last, low, exact = kind
    bins = flat(table)
    found = 0
    smallest, largest = beside[2, 0], beside[2, 1]
    for start in range(0, bins.size, 64):  # most blocks of so many bins hold nothing, and are passed over
        block = bins[start : start + 64]
        some = uint32(0)
        for i in range(block.size):
            some |= block[i]
        if some == uint32(0):
            continue
        for i in range(block.size):
            count = int64(block[i])
            if count == 0:
                continue
            code = start + i
            exponent = (code >> mantissa) & (last + 1)
            magnitude = code & 0x7FFF
            if exact != 0 and magnitude != 0 and exponent <= last:
                significand = magnitude & ((1 << mantissa) - 1)
                significand |= (1 << mantissa) if exponent != 0 else 0
                beside[1, max(exponent, 1)] += significand * significand * count
                smallest, largest = min(smallest, magnitude), max(largest, magnitude)
            if first <= exponent <= last and (low == 0 or code & low != 0) and last != 0 and code < 1 << 16:
                beside[0, exponent] += count
            else:
                index[found], counts[found] = code, count
                found += 1
        block[:] = uint32(0)
    beside[2, 0], beside[2, 1] = smallest, largest
    return _with_alike(beside, mantissa, first, last, found, index, counts)


@jit()
def _with_alike(beside: Any, mantissa: int, first: int, last: int, found: int, index: Any, counts: Any) -> int:
    """Insert the counts of exponents into ascending bins, from the end; returns how many there are then."""
    more = 0
    for exponent in range(first, last + 1):
        more += beside[0, exponent] != 0
    held, end = found - 1, found + more - 1
    for exponent in range(last, first - 1, -1):
        count = beside[0, exponent]
        if count != 0:
            home = (exponent << mantissa) | 1
            while held >= 0 and index[held] > home:
                index[end], counts[end] = index[held], counts[held]
                held -= 1
                end -= 1
            index[end], counts[end] = home, count
            end -= 1
            beside[0, exponent] = 0
    return found + more


@jit(fastmath={"reassoc", "contract"})
def squares(values: NDArray[np.floating[Any]], scale: float) -> float:
    """Sum of (scale * x)^2 over ``values`` (n,), accumulated in float64. All values must be finite."""
    total = float64(0.0)
    for i in range(values.size):
        x = float64(values[i]) * scale
        total += x * x
    return total


@jit(inline="always")
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


@jit()
def exact_rows32(codes: NDArray[np.uint32], row: int, need: int, narrow: bool) -> tuple[int, int]:
    """Count rows of fp32 patterns whose finite values are all exact in bf16, and those all exact in fp16 alone.

    narrow: all of them are known to be exact in bf16 (`count32` says), which spares looking at each value again.
    At least ``need`` different informative values must be among them (see `_informative`): a row of ones or zeros
    proves nothing. codes: (n,) whole rows of ``row`` elements. Most rows are left after their first 64 values.
    """
    bf16 = fp16 = 0
    for start in range(0, codes.size // row * row, row):
        first, end = min(start + 64, start + row), start + row
        if narrow or (_exact_in_bf16(codes[start:first]) and _exact_in_bf16(codes[first:end])):
            bf16 += _informative(codes[start:end], 23, 8, need, 0, 0x10000)
        elif _exact_in_fp16(codes[start:first]) and _exact_in_fp16(codes[first:end]):
            fp16 += _informative(codes[start:end], 23, 8, need, 0xFFFF, 0x2000)
    return int(bf16), int(fp16)


@jit()
def _exact_in_bf16(codes: NDArray[np.uint32]) -> bool:
    exceptions = uint32(0)
    for i in range(codes.size):
        magnitude = uint32(codes[i] & uint32(0x7FFFFFFF))
        cut = uint32(uint32(magnitude & uint32(0xFFFF)) != 0)
        exceptions = uint32(exceptions | uint32(cut & uint32(magnitude < uint32(0x7F800000))))
    return bool(exceptions == 0)


@jit()
def _exact_in_fp16(codes: NDArray[np.uint32]) -> bool:
    values = codes.view(np.float32)
    exceptions = uint32(0)
    for i in range(codes.size):
        magnitude = uint32(codes[i] & uint32(0x7FFFFFFF))
        # Below 2^-14 fp16 holds the multiples of 2^-24: adding and subtracting 1.5 * 2^23 rounds to whole ones.
        steps = values[i] * np.float32(2.0**24)
        off_grid = uint32((steps + np.float32(12582912.0)) - np.float32(12582912.0) != steps)
        off_range = uint32(uint32(magnitude >= uint32(0x47800000)) | uint32(uint32(magnitude & uint32(0x1FFF)) != 0))
        small = magnitude < uint32(0x38800000)
        finite = uint32(magnitude < uint32(0x7F800000))
        exceptions = uint32(exceptions | uint32(finite & (off_grid if small else off_range)))
    return bool(exceptions == 0)


@jit()
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


@jit()
def _fp16_exact_in_bf16(codes: NDArray[np.uint16]) -> bool:
    exceptions = uint16(0)
    for i in range(codes.size):
        magnitude = uint16(codes[i] & uint16(0x7FFF))
        normal = uint16(uint16(magnitude >= uint16(0x0400)) & uint16(magnitude < uint16(0x7C00)))
        exceptions = uint16(exceptions | uint16(normal & uint16(uint16(magnitude & uint16(7)) != 0)))
    return bool(exceptions == 0)


@jit()
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
