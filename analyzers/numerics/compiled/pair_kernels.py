"""The loops over pairs of bf16 patterns. `plain_pairs` says what they compute.

Nearly all that a fine-tune changes in bf16 it moves by a few steps. Such a pair is told completely by one pattern and the step: it costs
one increment of a small table, from which `fold` takes everything else. What is left goes the way of fp32 (`pair_blocks`).
"""

from typing import Any

import numpy as np
from numba import float64, int64, uint16, uint32, uint64
from numpy.typing import NDArray

from analyzers.numerics.compiled.compiler import jit
from analyzers.numerics.compiled.pair_passes import changes32, joint_places, survey16
from analyzers.numerics.compiled.pair_vectors import BLOCK, FASTER, fill_group, first_bit, keep, widen
from analyzers.numerics.compiled.vector_code import VECTOR_BYTES, address, room, rooms
from analyzers.numerics.pair_cells import (
    BASE_SQUARE,
    CHANGED,
    DIFFER,
    GROUP,
    JOINT,
    JOINT_ROW,
    PROBE,
    REACH,
    REST,
    UPDATE_MAX,
    UPDATE_SQUARE,
)

Codes = NDArray[np.uint32]

# A block with more differing pairs is counted whole; of others only those.
DENSE = BLOCK // 8

STRIP = 128  # patterns, those of a binade, that `fold` looks at together


@jit()
def increment(places: Codes, cells: Codes) -> None:
    """Add 1 to the cells at ``places`` (n,)."""
    pairs = places[: places.size // 2 * 2].view(np.uint64)
    for i in range(pairs.size):  # one load for two places
        pair = pairs[i]
        cells[pair & uint64(0xFFFFFFFF)] += uint32(1)
        cells[pair >> uint64(32)] += uint32(1)
    if places.size % 2:
        cells[places[places.size - 1]] += uint32(1)


@jit()
def _finite_squares(a: NDArray[np.uint16], b: NDArray[np.uint16]) -> float:
    """The sum of the squares of ``a``'s values over the pairs of finite values."""
    total = float64(0.0)
    for i in range(a.size):
        if max(uint16(a[i] & uint16(0x7FFF)), uint16(b[i] & uint16(0x7FFF))) < uint16(0x7F80):
            x = float64(np.uint32(uint32(a[i]) << uint32(16)).view(np.float32))
            total += x * x
    return total


@jit()
def _joint(
    a: NDArray[np.uint16], b: NDArray[np.uint16], places: Codes, masks: NDArray[np.uint64], joint: Codes, span: NDArray[np.int64],
    rest: Any, sent: int, counts: NDArray[np.int64],
) -> int:  # fmt: skip
    """Count pairs of finite bf16 patterns (whole groups) in ``joint`` cells, and append those that have none to the ``sent`` in ``rest``.

    Where most have none the others go along. Returns how many ``rest`` holds; those of them that differ are taken from ``counts`` again.
    """
    groups = a.size // GROUP
    found, far, highest, lowest = joint_places(address(a), address(b), groups, address(places), address(masks))
    handed_on = int64(far)
    if far > a.size // 2:
        widen(a, rest[0, sent : sent + a.size])
        widen(b, rest[1, sent : sent + a.size])
        sent += a.size
        differing = uint16(0)
        for i in range(a.size):
            both_zero = uint16((a[i] | b[i]) & uint16(0x7FFF)) == uint16(0)
            differing = uint16(differing + (uint16(a[i] != b[i]) & uint16(not both_zero)))
        handed_on = int64(differing)
    else:
        span[0], span[1] = min(span[0], lowest), max(span[1], highest)
        increment(places[:found], joint)
        for group in range(groups if far > 0 else 0):
            mask = masks[group]
            while mask != uint64(0):
                i = group * GROUP + int64(first_bit(mask))
                mask &= mask - uint64(1)
                rest[0, sent], rest[1, sent] = uint32(a[i]) << uint32(16), uint32(b[i]) << uint32(16)
                sent += 1
    counts[CHANGED] -= handed_on
    counts[DIFFER] -= handed_on
    return sent


@jit()
def count16(
    base: NDArray[np.uint16], tuned: NDArray[np.uint16], start: int, joint: Codes, rest: Any, counts: NDArray[np.int64],
    sums: NDArray[np.float64], span: NDArray[np.int64], changed: NDArray[np.uint64],
) -> tuple[int, int]:  # fmt: skip
    """Count pairs of bf16 patterns (n,), whole groups, from number ``start`` on, in the JOINT cells ``joint`` for `fold`.

    rest: (2, `REST`) takes the fp32 patterns of pairs that have no such cell, for `count32`, whose base squares are counted here.
    Returns the number of the first pair not counted, for that is full, and how many it holds, whole groups. span: (2,) is widened to the
    least and the largest |pattern| that has counts, zero aside. changed: (n / 64,) or none is set to where values differ.
    """
    places = room(uint32, 2 * BLOCK + VECTOR_BYTES // 4)
    here, words, apart = room(uint64, BLOCK // GROUP), room(int64, BLOCK // GROUP + 1), room(uint64, 2 * BLOCK // GROUP)
    kept = rooms(uint16, 2, 2 * BLOCK)
    held = sent = 0
    for first in range(start, base.size, BLOCK):
        stop = min(first + BLOCK, base.size)
        a, b = base[first:stop], tuned[first:stop]
        masks = changed[first // GROUP :] if changed.size else here
        largest, differing, square = survey16(address(a), address(b), a.size // GROUP, address(masks))
        if largest >= 0x7F80:
            sums[BASE_SQUARE] += _finite_squares(a, b)
            widen(a, rest[0, sent : sent + a.size])
            widen(b, rest[1, sent : sent + a.size])
            changes32(address(rest[0, sent:]), address(rest[1, sent:]), a.size // GROUP, address(masks))
            sent += a.size
        else:
            sums[BASE_SQUARE] += square
            counts[CHANGED] += differing
            counts[DIFFER] += differing
            if differing > DENSE:
                sent = _joint(a, b, places, apart, joint, span, rest, sent, counts)
            elif differing > 0:
                held = keep(a, b, masks, words, differing, kept, held)
        full = stop == base.size or sent > REST - 4 * BLOCK
        if held >= BLOCK or (full and held > 0):
            held = fill_group(kept, held)
            sent = _joint(kept[0, :held], kept[1, :held], places, apart, joint, span, rest, sent, counts)
            held = 0
        if full:
            return stop, fill_group(rest, sent)
    return base.size, fill_group(rest, sent)


@jit(fastmath=FASTER)
def _fold(
    times: Codes, base: NDArray[np.float64], tuned: NDArray[np.float64], eta: float, counts: NDArray[np.int64], sums: NDArray[np.float64]
) -> None:
    """Count ``times`` (n,) pairs of each of the values."""
    update_square = float64(0.0)
    largest = probe = int64(0)
    for i in range(times.size):
        count = int64(times[i])
        x = abs(tuned[i] - base[i])
        update_square += float64(count) * (x * x)
        largest = max(largest, np.float64(x).view(np.int64) if count != 0 else int64(0))
        probe += count if x > eta * max(abs(base[i]), abs(tuned[i])) else int64(0)
    counts[PROBE] += probe
    sums[UPDATE_SQUARE] += update_square
    sums[UPDATE_MAX] = max(sums[UPDATE_MAX], np.int64(largest).view(np.float64))


@jit()
def fold(
    joint: Codes, values: NDArray[np.float64], span: NDArray[np.int64], eta: float, cells: Codes, counts: NDArray[np.int64],
    sums: NDArray[np.float64],
) -> None:  # fmt: skip
    """Count the pairs in ``joint``, move them to ``cells``, and clear it. values: of the patterns from -REACH on; span: see `count16`."""
    first, last = span[0] // STRIP, span[1] // STRIP
    for row in range(16):
        for number in range(first, last + 2):
            start = STRIP * number if number <= last else 0  # zero, if nothing near it, stands alone
            stop = start + (STRIP if number <= last else 1)
            times = joint[row * JOINT_ROW + start : row * JOINT_ROW + stop]
            some = uint32(0)
            for i in range(times.size):
                some = uint32(some | times[i])
            if some == uint32(0):
                continue
            if row < 15:
                _fold(times, values[REACH + start : REACH + stop], values[row + start : row + stop], eta, counts, sums)
            if cells.size:
                kept = cells[JOINT + row * JOINT_ROW + start : JOINT + row * JOINT_ROW + stop]
                for i in range(times.size):
                    kept[i] += times[i]
            times[:] = 0


@jit()
def look_up(codes: NDArray[Any], table: Codes, out: Codes) -> None:
    """Set ``out`` (n,) to what ``table`` holds for each of ``codes`` (n,)."""
    for i in range(codes.size):
        out[i] = table[codes[i]]
