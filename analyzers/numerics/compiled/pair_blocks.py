"""The loops over pairs of fp32 patterns. `plain_pairs` says what they compute.

Each pass over a block of 1,024 pairs does one thing, so that it becomes vector instructions; the block stays in the nearest cache.

Legend: ``w``, ``v`` (n,) are fp32 patterns of the base and the tuned values, finite unless said otherwise; ``cells``, ``counts`` and
``sums`` are laid out by `pair_cells`. Cells without any stand for counts alone.
"""

from typing import Any

import numpy as np
from numba import float64, int64, uint32, uint64
from numpy.typing import NDArray

from analyzers.numerics.compiled.compiler import jit
from analyzers.numerics.compiled.pair_passes import changes32, survey32, updates32
from analyzers.numerics.compiled.pair_vectors import (
    BLOCK,
    FASTER,
    INFINITY,
    MAGNITUDE,
    fill_group,
    fp32,
    keep,
    one_nan,
    order,
    widen_narrow,
)
from analyzers.numerics.compiled.vector_code import address, room, rooms
from analyzers.numerics.pair_cells import (
    ABSOLUTE,
    ALL,
    BASE_SQUARE,
    CHANGED,
    DIFFER,
    GROUP,
    LARGEST,
    MOVED,
    NONFINITE,
    NONFINITE_DIFFER,
    PLANE,
    PROBE,
    RELATIVE,
    RELATIVE_FIRST,
    RELATIVE_LARGEST,
    RELATIVE_PLANE,
    RELATIVE_SQUARE,
    RELATIVE_TOTAL,
    SQUARE,
    TINY,
    TINY_PLANE,
    TOTAL,
    UPDATE_MAX,
    UPDATE_SQUARE,
)

Codes = NDArray[np.uint32]

# A block with more differing pairs is counted whole; of others only those.
DENSE = BLOCK // 3

_NORMAL = np.float32(2.0**-126)
_MOVED = np.uint32(PLANE)


@jit()
def _count_changes(w: Codes, v: Codes, counts: NDArray[np.int64]) -> None:
    """What is wanted without tables: CHANGED and DIFFER."""
    changed = differ = uint32(0)
    for i in range(w.size):
        changed = uint32(changed + uint32(order(w[i]) != order(v[i])))
        differ = uint32(differ + (uint32(w[i] != v[i]) & uint32(uint32((w[i] | v[i]) & MAGNITUDE) != uint32(0))))
    counts[CHANGED] += changed
    counts[DIFFER] += differ


@jit()
def _take_back(packed: Codes, cells: Codes) -> None:
    """Undo what `updates32` added to cells."""
    for i in range(packed.size):
        cells[int64(ABSOLUTE) + int64(packed[i] & uint32(0xFFFF))] -= uint32(1)
        cells[int64(RELATIVE) + int64(packed[i] >> uint32(16))] -= uint32(1)


@jit(fastmath=FASTER)
def _add_squares(w: Codes, v: Codes, eta: float, counts: NDArray[np.int64], sums: NDArray[np.float64]) -> None:
    """What is wanted without tables: the PROBE, the sum of squared updates, and the largest."""
    square = float64(0.0)
    largest = probe = int64(0)
    for i in range(w.size):
        a, b = float64(np.uint32(w[i]).view(np.float32)), float64(np.uint32(v[i]).view(np.float32))
        x = abs(b - a)
        probe += int64(1) if x > eta * max(abs(a), abs(b)) else int64(0)
        square += x * x
        largest = max(largest, np.float64(x).view(np.int64))
    counts[PROBE] += probe
    sums[UPDATE_SQUARE] += square
    sums[UPDATE_MAX] = max(sums[UPDATE_MAX], np.int64(largest).view(np.float64))


@jit()
def _exceeded(pattern: Any, largest: float) -> bool:
    """Whether a float64 result whose float32 one has this ``pattern`` may be larger."""
    return bool(float64(np.uint32(pattern).view(np.float32)) * (1 + 2.0**-20) > largest)


@jit()
def _add_peaks(w: Codes, v: Codes, packed: Codes, peaks: Codes, sums: NDArray[np.float64]) -> None:
    """The largest updates in float64; looked for where those in float32 say that there may be one. No relative one is beyond 2."""
    seen = _exceeded(peaks[0], sums[ALL + LARGEST]) or _exceeded(peaks[2], sums[MOVED + LARGEST])
    if sums[MOVED + RELATIVE_LARGEST] < 2.0:
        seen |= _exceeded(peaks[1], sums[ALL + RELATIVE_LARGEST]) or _exceeded(peaks[3], sums[MOVED + RELATIVE_LARGEST])
    if not seen:
        return
    largest = share = moved = moved_share = int64(0)
    for i in range(w.size):
        a, b = float64(np.uint32(w[i]).view(np.float32)), float64(np.uint32(v[i]).view(np.float32))
        x = abs(b - a)
        y = x / max(max(abs(a), abs(b)), 1e-300)
        update, relative = np.float64(x).view(np.int64), np.float64(y).view(np.int64)
        largest, share = max(largest, update), max(share, relative)
        moved = max(moved, update if packed[i] & _MOVED else int64(0))
        moved_share = max(moved_share, relative if packed[i] & _MOVED else int64(0))
    sums[ALL + LARGEST] = max(sums[ALL + LARGEST], np.int64(largest).view(np.float64))
    sums[ALL + RELATIVE_LARGEST] = max(sums[ALL + RELATIVE_LARGEST], np.int64(share).view(np.float64))
    sums[MOVED + LARGEST] = max(sums[MOVED + LARGEST], np.int64(moved).view(np.float64))
    sums[MOVED + RELATIVE_LARGEST] = max(sums[MOVED + RELATIVE_LARGEST], np.int64(moved_share).view(np.float64))


@jit()
def _one(w: Any, v: Any, base: bool, eta: float, cells: Codes, counts: NDArray[np.int64], sums: NDArray[np.float64]) -> None:
    """Count one pair of any values, step by step; ``base``: and its w^2."""
    low, high = min(w & MAGNITUDE, v & MAGNITUDE), max(w & MAGNITUDE, v & MAGNITUDE)
    if low > INFINITY or w == v:
        step, differ = int64(0), False
    else:
        step, differ = int64(abs(int64(order(one_nan(w))) - int64(order(one_nan(v))))), high != 0
    counts[CHANGED] += step != 0
    counts[DIFFER] += differ
    if high >= INFINITY:
        counts[NONFINITE] += 1
        counts[NONFINITE_DIFFER] += differ
        counts[PROBE] += differ
        return
    a, b = float64(np.uint32(w).view(np.float32)), float64(np.uint32(v).view(np.float32))
    if base:
        sums[BASE_SQUARE] += a * a
    if not differ:
        return
    x, larger = abs(b - a), max(abs(a), abs(b))
    y = x / larger
    counts[PROBE] += x > eta * larger
    plane = int64(step != 0)
    for first in (ALL, MOVED):
        if first == ALL or plane == 1:
            sums[first + TOTAL] += x
            sums[first + SQUARE] += x * x
            sums[first + RELATIVE_TOTAL] += y
            sums[first + RELATIVE_SQUARE] += y * y
            sums[first + LARGEST] = max(sums[first + LARGEST], x)
            sums[first + RELATIVE_LARGEST] = max(sums[first + RELATIVE_LARGEST], y)
    if cells.size == 0:
        return
    short = abs(np.uint32(v).view(np.float32) - np.uint32(w).view(np.float32))
    pattern = np.float32(short).view(np.uint32)
    if pattern >= uint32(0x00800000) and pattern < INFINITY:
        cells[ABSOLUTE + plane * PLANE + int64(pattern >> uint32(16))] += uint32(1)
        share = short / max(abs(np.uint32(v).view(np.float32)), abs(np.uint32(w).view(np.float32)))
        place = int64(np.float32(share).view(np.uint32) >> uint32(16))
    else:
        high_bits = int64(np.float64(x).view(np.int64) >> 45)
        if pattern >= INFINITY:
            cells[ABSOLUTE + plane * PLANE + high_bits - (1023 - 127) * 128] += uint32(1)
        else:
            cells[TINY + plane * TINY_PLANE + high_bits - (1023 - 149) * 128] += uint32(1)
        place = int64(np.float64(y).view(np.int64) >> 45) - (1023 - 127) * 128
    bin_ = step
    if step > 3:
        bin_ = int64(np.float64(float64(step)).view(np.int64) >> 52) - 1021
    cells[RELATIVE + bin_ * RELATIVE_PLANE + place - RELATIVE_FIRST] += uint32(1)


@jit()
def _updates(
    w: Codes, v: Codes, base: bool, eta: float, packed: Codes, peaks: Codes, found: NDArray[np.float64], cells: Codes,
    counts: NDArray[np.int64], sums: NDArray[np.float64],
) -> int:  # fmt: skip
    """Count a block of pairs (whole groups), equal ones among them or not, and how many differ; -1, and nothing, where one is odd.

    ``base``: and the squares of the base's.
    """
    changed, differ, probe, odd = updates32(
        address(w), address(v), w.size // GROUP, eta, address(packed), address(peaks), address(found), address(cells)
    )
    if odd != 0:
        _take_back(packed[: w.size], cells)
        return -1
    counts[CHANGED] += changed
    counts[DIFFER] += differ
    counts[PROBE] += probe
    for number, first in enumerate((ALL, MOVED)):
        sums[first + TOTAL] += found[4 * number]
        sums[first + SQUARE] += found[4 * number + 1]
        sums[first + RELATIVE_TOTAL] += found[4 * number + 2]
        sums[first + RELATIVE_SQUARE] += found[4 * number + 3]
    if base:
        sums[BASE_SQUARE] += found[8]
    _add_peaks(w, v, packed, peaks, sums)
    return int(differ)


@jit()
def _block(
    w: Codes, v: Codes, eta: float, packed: Codes, peaks: Codes, found: NDArray[np.float64], cells: Codes, counts: NDArray[np.int64],
    sums: NDArray[np.float64],
) -> None:  # fmt: skip
    """Count a block of pairs of finite values (whole groups), equal ones among them or not. Of ``w`` itself nothing is counted."""
    if cells.size == 0:
        _count_changes(w, v, counts)
        _add_squares(w, v, eta, counts, sums)
    elif _updates(w, v, False, eta, packed, peaks, found, cells, counts, sums) < 0:
        for i in range(w.size):
            _one(w[i], v[i], False, eta, cells, counts, sums)


@jit()
def count32(
    w: NDArray[Any], v: NDArray[Any], base: bool, eta: float, cells: Codes, counts: NDArray[np.int64], sums: NDArray[np.float64],
    changed: NDArray[np.uint64],
) -> None:  # fmt: skip
    """Count pairs of patterns of bf16 or fp32 (n,), whole groups, of any values; ``base``: and the squares of the base's.

    changed: (n / 64,) or none is set to where the bf16 values of pairs differ.
    """
    wide = rooms(uint32, 2, BLOCK)  # of patterns of bf16, those of fp32
    packed, peaks, totals = room(uint32, 2 * BLOCK), room(uint32, 4), room(float64, 9)
    masks, words = room(uint64, BLOCK // GROUP + 1), room(int64, BLOCK // GROUP + 1)
    kept = rooms(uint32, 2, 2 * BLOCK)  # pairs that differ, of blocks where few do
    held = 0
    many = False  # of the block before differed: likely so of the next one, which then need not be looked through first
    for first in range(0, w.size, BLOCK):
        stop = min(first + BLOCK, w.size)
        widen_narrow(w[first:stop], wide[0])
        widen_narrow(v[first:stop], wide[1])
        a, b = fp32(w[first:stop], wide[0]), fp32(v[first:stop], wide[1])
        if changed.size:
            changes32(address(a), address(b), a.size // GROUP, address(changed[first // GROUP :]))
        if many and cells.size > 0:
            differing = _updates(a, b, base, eta, packed, peaks, totals, cells, counts, sums)
            many = differing > DENSE
            if differing >= 0:
                continue
        largest, differing, square = survey32(address(a), address(b), a.size // GROUP, address(masks))
        if largest >= INFINITY:
            for i in range(a.size):
                _one(a[i], b[i], base, eta, cells, counts, sums)
            continue
        if base:
            sums[BASE_SQUARE] += square
        many = differing > DENSE
        if many:
            _block(a, b, eta, packed, peaks, totals, cells, counts, sums)
        elif differing > 0:
            held = keep(a, b, masks, words, differing, kept, held)
            if held >= BLOCK:
                held = fill_group(kept, held)
                _block(kept[0, :held], kept[1, :held], eta, packed, peaks, totals, cells, counts, sums)
                held = 0
    if held > 0:
        held = fill_group(kept, held)
        _block(kept[0, :held], kept[1, :held], eta, packed, peaks, totals, cells, counts, sums)
