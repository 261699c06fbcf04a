"""Fits scaled grids to tiles of stored values: is there a scale for which each value is a level of a code book times it, rounded?

A stored value v stands for its cell [low, high], the numbers that round to it. If v is level l times the scale s, then s lies in
[low / l, high / l]. The scales that explain a whole tile are the intersection, over its values, of the union of these intervals over the
levels. For a grid with an offset, v = k d + m, each pair of values confines the step d, and all pairs together are sufficient too (an
offset exists if any two of its intervals intersect: Helly's theorem in one dimension).

The chance that a tile without a grid passes is bounded by the sum, over the scales that put one value exactly on a level, of the
probability that all other values are then on levels: a value is with the probability (width of its cell) / (distance of the levels). Values
that are coarser than their dtype, such as integers or values with few bits, have the wider cells of their own resolution. Equal values
count once, except on grids of so few levels that repeats are all there is to see: three (ternary), or 2 * `_FEW` in a whole tensor.
"""

from math import ceil, frexp, ldexp, log10
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

# Counts of a grid on tiles: tested, those that fail, values set aside so that a tile passes, tiles without information, tiles that pass and
# are proof enough alone, those whose scale may be a power of two; from `SPANS` and `SIGNED` on, numbers of tiles by the bits of integers
# with a zero point, and of signed ones; the largest magnitude of an integer; and two counts for each level of `float_grid_kernels`.
TESTED, FAILED, OUTLIERS, DULL, STRONG, POWERS = range(6)
MOST_BITS = 9  # and more
SPANS, SIGNED, LARGEST = 6, 7 + MOST_BITS, 8 + 2 * MOST_BITS
FINEST = LARGEST + 1
GRID_COUNTS = FINEST + 2 * 64

# Tiles with different largest values, or for scales of powers of two with different values, whose chances multiply; others may repeat the
# same vocabulary of values. Only the strongest are kept.
ANCHORS = 64

STRONG_DECADES = 6.0

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

_SLOTS = 1024  # of the hash table: four times the number of distinct values that any code book has
_PIECES = 64  # intervals of feasible scales
_FEW, _REPEATS, _MOST_OF_REPEATS = 8, 16, 6.0
_SAME = 4  # equal values of a tile that count if its scale is a power of two
_AGAIN = 2  # at most so many of the largest values are set aside
_FEWEST = 6  # values of a tile that may have outliers


@njit(nogil=True, cache=True)
def _value(magnitude: int, mantissa: int, exponent: int) -> float:
    """Return the value of a pattern without sign."""
    stored = magnitude >> mantissa
    whole = (magnitude & ((1 << mantissa) - 1)) + ((1 << mantissa) if stored > 0 else 0)
    return ldexp(float(whole), max(stored, 1) - ((1 << (exponent - 1)) - 1) - mantissa)


@njit(nogil=True, cache=True)
def _cell(magnitude: int, mantissa: int, exponent: int) -> tuple[float, float]:
    """Return the numbers that round to a pattern, in fp32 arithmetic first: one ulp on either side if fp32 is stored itself."""
    value, above = _value(magnitude, mantissa, exponent), _value(magnitude + 1, mantissa, exponent)
    below = _value(magnitude - 1, mantissa, exponent) if magnitude > 0 else -above
    if mantissa >= 23:
        return 2 * value - above, above
    return (value + below) / 2 * (1 - 2.0**-23), (value + above) / 2 * (1 + 2.0**-23)


@njit(nogil=True, cache=True)
def _first_level(levels: Floats, least: float) -> int:
    if levels[-1] == levels.size:  # integers from 1 on
        return int(max(ceil(min(least, levels.size + 1.0)) - 1, 0))
    return int(np.searchsorted(levels, least))


@njit(nogil=True, cache=True)
def _refine(low: float, high: float, levels: Floats, before: Floats, count: int, after: Floats) -> int:
    """Intersect ``count`` intervals of scales with those that put [low, high] on a level. Returns the number of intervals in ``after``."""
    found = 0
    for i in range(count):
        k = _first_level(levels, low / before[i, 1])
        while k < levels.size and levels[k] * before[i, 0] <= high and found < after.shape[0]:
            least, most = max(before[i, 0], low / levels[k]), min(before[i, 1], high / levels[k])
            if least <= most:
                after[found, 0], after[found, 1] = least, most
                found += 1
            k += 1
    return found


@njit(nogil=True, cache=True)
def _power_in(low: float, high: float) -> float:
    """Return the power of two between two positive numbers; 0 if there is none."""
    fraction, exponent = frexp(low)
    power = ldexp(1.0, exponent - 1 if fraction == 0.5 else exponent)
    return power if power <= high else 0.0


@njit(nogil=True, cache=True)
def _different(cells: Floats, negative: Flags, n: int, book: Floats, scales: Floats) -> bool:
    """Return whether different values may have different levels: one on the border of two cells explains only one of them."""
    for side in range(2):
        k = -1
        for j in range(n):
            if int(negative[j]) == side:
                k = max(k + 1, _first_level(book[side], cells[j, 0] / scales[1]))
                if k == book.shape[1] or book[side, k] * scales[0] > cells[j, 1]:
                    return False
    return True


@njit(nogil=True, cache=True)
def _fit(cells: Floats, negative: Flags, n: int, book: Floats, powers: bool, scales: Floats) -> int:
    """Find the coarsest grid: the lowest level that the largest value may have.

    cells: (n, 2) of magnitudes, ascending; negative: their signs; book: (2, levels) magnitudes of positive and of negative levels,
    ascending, padded with infinity; powers: whether the scale must be a power of two. Sets scales (2,) to the first interval of scales.
    Returns the index of the level; -1 if there is none.
    """
    last = n - 1
    before, after = np.empty((_PIECES, 2)), np.empty((_PIECES, 2))
    own, others, k = book[int(negative[last])], book[int(negative[0])], 0
    for anchor in range(own.size):
        if not own[anchor] < np.inf:
            break
        before[0, 0], before[0, 1] = cells[last, 0] / own[anchor], cells[last, 1] / own[anchor]
        while k < others.size and others[k] < cells[0, 0] / before[0, 1]:
            k += 1  # the higher the anchor, the smaller the scale
        if k == others.size or others[k] * before[0, 0] > cells[0, 1]:
            continue
        count = 1
        for j in range(last):
            count = _refine(cells[j, 0], cells[j, 1], book[int(negative[j])], before, count, after)
            if count == 0:
                break
            before, after = after, before
        for i in range(count):
            power = _power_in(before[i, 0], before[i, 1]) if powers else 0.0
            scales[0], scales[1] = (power, power) if powers else (before[i, 0], before[i, 1])
            if (not powers or power > 0) and _different(cells, negative, n, book, scales):
                return anchor
    return -1


@njit(nogil=True, cache=True)
def _fit_offset(cells: Floats, values: Floats, n: int, most: int, scales: Floats) -> int:
    """Find the fewest steps from the smallest to the largest of ascending ``values`` (n,) on a grid of any offset; 0 if there are none."""
    steps = np.empty(n, dtype=np.int64)
    for span in range(max(n - 1, 1), most + 1):
        low, high = (cells[n - 1, 0] - cells[0, 1]) / span, (cells[n - 1, 1] - cells[0, 0]) / span
        if low <= 0:
            break
        for i in range(n):
            steps[i] = np.int64(np.rint((values[i] - values[0]) / (values[n - 1] - values[0]) * span))
            if i > 0 and steps[i] <= steps[i - 1]:
                high = 0.0
            j = i - 1
            while j >= 0 and low <= high:
                between = steps[i] - steps[j]
                low, high = max(low, (cells[i, 0] - cells[j, 1]) / between), min(high, (cells[i, 1] - cells[j, 0]) / between)
                j -= 1
            if low > high:
                break
        if low <= high:
            scales[0], scales[1] = low, high
            return span
    return 0


@njit(nogil=True, cache=True)
def _width(cell_low: float, cell_high: float, value: float, own_bits: int, own_step: float) -> float:
    """Return the width of a cell at the resolution that the values use: ``own_bits`` significant ones, multiples of ``own_step``."""
    return max(cell_high - cell_low, own_step, ldexp(1.0, frexp(value)[1] - own_bits))


@njit(nogil=True, cache=True)
def _decades(
    cells: Floats, negative: Flags, counts: Ints, book: Floats, anchor: int, scale: float, powers: bool, own_bits: int, own_step: float
) -> float:
    """Bound -log10 of the chance that the magnitudes of a tile pass `_fit` at ``anchor``.

    If scales are powers of two (``powers``), the values have as few bits as the levels, and there are few of them: up to `_SAME` equal
    ones count.
    """
    total, largest, distinct = 0.0, 0.0, 0
    for j in range(len(cells)):
        if j > 0 and cells[j, 0] == cells[j - 1, 0] and not powers:
            continue
        value, levels = (cells[j, 0] + cells[j, 1]) / 2, book[int(negative[j])]
        k = _first_level(levels, value / scale)
        if k == levels.size or (k > 0 and value / scale - levels[k - 1] < levels[k] - value / scale):
            k -= 1
        below = levels[k - 1] if k > 0 else 0.0
        above = levels[k + 1] if k + 1 < levels.size and levels[k + 1] < np.inf else 2 * levels[k] - below
        between = min(levels[k] - below, above - levels[k]) * scale
        each = -log10(min(1.0, _width(cells[j, 0], cells[j, 1], value, own_bits, own_step) / between))
        distinct, total, largest = distinct + 1, total + each * (min(counts[j], _SAME) if powers else 1), max(largest, each)
    return total - log10(4.0) if powers else total - largest - log10(distinct * (anchor + 1.0))


@njit(nogil=True, cache=True)
def _decades_with_offset(cells: Floats, values: Floats, n: int, span: int, step: float, own_bits: int, own_step: float) -> float:
    """Bound -log10 of the chance that a tile passes `_fit_offset` at ``span``: two values determine step and offset."""
    total, largest, second = 0.0, 0.0, 0.0
    for i in range(n):
        each = -log10(min(1.0, _width(cells[i, 0], cells[i, 1], abs(values[i]), own_bits, own_step) / step))
        total += each
        largest, second = max(largest, each), max(second, min(largest, each))
    return total - largest - second - log10(float(n * n * span))


@njit(nogil=True, cache=True)
def _distinct(
    codes: NDArray[Any], rows: tuple[int, int], row: tuple[int, int, int], every_bit: int, slots: Ints, patterns: Ints, numbers: Ints
) -> int:
    """Set the distinct patterns of a tile, without -0, and their numbers; return how many there are, at most all that fit.

    rows: of the tile, first and end; row: its length, and the first and end of the tile's columns. slots: of a hash table, empty (-1).
    """
    used = np.empty(patterns.size, dtype=np.int64)
    distinct = 0
    for r in range(rows[0], rows[1]):
        for i in range(r * row[0] + row[1], r * row[0] + row[2]):
            code: Any = np.int64(codes[i])
            code = code if code & every_bit else 0
            slot = ((code * 2654435761) >> 12) & (_SLOTS - 1)
            while slots[slot] >= 0 and patterns[slots[slot]] != code:
                slot = (slot + 1) & (_SLOTS - 1)
            if slots[slot] < 0:
                slots[slot], patterns[distinct], used[distinct], numbers[distinct] = distinct, code, slot, 0
                distinct += 1
            numbers[slots[slot]] += 1
            if distinct == patterns.size:
                slots[:] = -1
                return distinct
    slots[used[:distinct]] = -1
    return distinct


@njit(nogil=True, cache=True)
def _sort(patterns: Ints, numbers: Ints, every_bit: int, signed: bool) -> None:
    """Sort patterns by magnitude, or by value if ``signed``, with their numbers."""
    ranks = patterns & every_bit
    if signed:
        ranks[patterns > every_bit] *= -1
    for i in range(1, ranks.size):
        rank, pattern, number, j = ranks[i], patterns[i], numbers[i], i
        while j > 0 and ranks[j - 1] > rank:
            ranks[j], patterns[j], numbers[j] = ranks[j - 1], patterns[j - 1], numbers[j - 1]
            j -= 1
        ranks[j], patterns[j], numbers[j] = rank, pattern, number


@njit(nogil=True, cache=True)
def test_tiles(
    codes: NDArray[Any], columns: int, first: Ints, shape: Ints, tile: Ints, cut: bool, stride: int, form: Ints, own_step: float,
    book: Floats, out: Ints, keys: Ints, decades: Floats, fits: Floats,
) -> None:  # fmt: skip
    """Test every ``stride``-th tile of a piece of a matrix.

    codes: (rows * columns,) patterns; first: its first row and column in the matrix; shape: of the matrix; tile: rows and columns of a
    tile. Tiles begin at multiples of these; one that the piece has only in part is tested if ``cut``. form: bits of the mantissa and of the
    exponent as stored, significant bits in use, whether the scale is a power of two, whether zero is a level, the most steps of a grid with
    an offset (0: levels of ``book``, as in `_fit`), and whether the tile is the whole tensor. own_step: the power of two that divides all
    values. Adds to out (GRID_COUNTS,); to keys and decades (ANCHORS,), patterns of the largest values and the evidence of their tiles; sets
    fits (tiles, 2), unless it is empty, to scales that explain a tile, from the lowest to the highest, and leaves those of the others.
    """
    every_bit, offset = (1 << (form[0] + form[1])) - 1, form[5]
    rows, limit = codes.size // columns, _AGAIN + 2 + (offset if offset > 0 else min(2 * book.shape[1], _SLOTS // 2))
    slots = np.full(_SLOTS, -1, dtype=np.int64)
    patterns, numbers = np.empty(limit, dtype=np.int64), np.empty(limit, dtype=np.int64)
    highest, leftmost = first[0] // tile[0], first[1] // tile[1]
    across = (first[1] + columns - 1) // tile[1] + 1 - leftmost
    for number in range(0, ((first[0] + rows - 1) // tile[0] + 1 - highest) * across, stride):
        down, right = highest + number // across, leftmost + number % across
        top, bottom = max(down * tile[0], first[0]), min((down + 1) * tile[0], first[0] + rows)
        left, end = max(right * tile[1], first[1]), min((right + 1) * tile[1], first[1] + columns)
        whole = top == down * tile[0] and bottom == min((down + 1) * tile[0], shape[0])
        if cut or (whole and left == right * tile[1] and end == min((right + 1) * tile[1], shape[1])):
            row = (columns, left - first[1], end - first[1])
            distinct = _distinct(codes, (top - first[0], bottom - first[0]), row, every_bit, slots, patterns, numbers)
            if distinct == limit:
                out[TESTED] += 1
                out[FAILED] += 1
            else:
                _sort(patterns[:distinct], numbers[:distinct], every_bit, offset > 0)
                _test(patterns[:distinct], numbers[:distinct], form, own_step, book, out, keys, decades, fits[number : number + 1])


@njit(nogil=True, cache=True)
def test_forms(
    codes: NDArray[Any], columns: int, first: Ints, tests: Ints, steps: Floats, books: Floats, out: Ints, keys: Ints, decades: Floats
) -> None:
    """Call `test_tiles` for several grids and sizes of tiles: once for all, since a call costs as much as a few tiles.

    tests: (tests, 16) row of ``out``, ``keys`` and ``decades``, first and number of its levels in ``books``, and shape, tile, cut, stride,
    form; steps: their own_step.
    """
    unseen = np.empty((0, 2))
    for i in range(len(tests)):
        test, row, book = tests[i], tests[i, 0], books[tests[i, 1] : tests[i, 1] + tests[i, 2]].reshape((2, -1))
        test_tiles(
            codes, columns, first, test[3:5], test[5:7], test[7] != 0, test[8], test[9:], steps[i], book,
            out[row], keys[row], decades[row], unseen,
        )  # fmt: skip


@njit(nogil=True, cache=True)
def _test(
    patterns: Ints, numbers: Ints, form: Ints, own_step: float, book: Floats, out: Ints, keys: Ints, decades: Floats, fits: Floats
) -> None:
    """Test a tile, given by its distinct patterns in the order of `_sort` and their numbers; see `test_tiles`."""
    mantissa, exponent, own_bits, powers, has_zero, offset = form[0], form[1], form[2], form[3] != 0, form[4] != 0, form[5]
    every_bit = (1 << (mantissa + exponent)) - 1
    cells, values = np.empty((patterns.size, 2)), np.empty(patterns.size)
    negative, counts = np.empty(patterns.size, dtype=np.bool_), np.empty(patterns.size, dtype=np.int64)
    n = zeros = aside = key = 0
    for i in range(patterns.size):
        magnitude, minus = patterns[i] & every_bit, patterns[i] > every_bit
        if magnitude >> mantissa == (1 << exponent) - 1:
            aside += numbers[i]
        elif magnitude == 0 and offset == 0:
            zeros += numbers[i]
        else:
            low, high = _cell(magnitude, mantissa, exponent)
            cells[n, 0], cells[n, 1] = (-high, -low) if minus and offset > 0 else (low, high)
            values[n] = _value(magnitude, mantissa, exponent) * (-1 if minus and offset > 0 else 1)
            negative[n], counts[n] = minus, numbers[i]
            key = max(key, magnitude)
            n += 1
    if n == 0 or (offset > 0 and n < 3):
        out[DULL] += 1
        return
    out[TESTED] += 1
    found = np.empty(2)
    anchor, proof, positive, minuses = -1, 0.0, 0, 0
    if aside > _AGAIN or (zeros > 0 and not has_zero):
        pass
    elif offset > 0:
        for i in range(n):  # the product is rounded before the sum
            error = max(cells[n - 1, 1], -cells[0, 0]) * 2.0**-22
            cells[i, 0], cells[i, 1] = cells[i, 0] - error, cells[i, 1] + error
        anchor = _fit_offset(cells, values, n, offset, found)
        if anchor > 0:
            proof = _decades_with_offset(cells, values, n, anchor, (found[0] + found[1]) / 2, own_bits, own_step)
    else:
        lopsided = bool(np.any(book[0] != book[1]))
        dropped = 0
        while True:
            anchor = _fit(cells, negative, n, book, powers, found)
            if anchor < 0 and lopsided:  # the scale may be negative
                negative[:n] = ~negative[:n]
                anchor = _fit(cells, negative, n, book, powers, found)
            if anchor >= 0 or dropped == _AGAIN or n <= _FEWEST:
                break
            dropped, n = dropped + 1, n - 1
            aside += counts[n]
        if anchor >= 0:
            repeats = 0
            for i in range(n):
                steps: Any = np.int64(np.ceil(cells[i, 0] / found[1] - 1e-9))
                minuses, positive = max(minuses, steps * negative[i]), max(positive, steps * (not negative[i]))
                repeats += min(counts[i] - 1, _REPEATS)
            middle = (found[0] + found[1]) / 2
            proof = _decades(cells[:n], negative[:n], counts[:n], book, anchor, middle, powers, own_bits, own_step) - 0.5 * dropped
            if (
                book[0, -1] == book.shape[1]
                and zeros > 0
                and positive > 0
                and minuses > 0
                and max(positive, minuses) <= (_FEW if form[6] else 1)
            ):
                again = repeats * max(0.0, -log10(min(1.0, _width(cells[0, 0], cells[0, 1], values[0], own_bits, own_step) / middle)))
                proof += again if max(positive, minuses) == 1 else min(again, _MOST_OF_REPEATS)
    if anchor < 0 or (offset > 0 and anchor == 0):
        out[FAILED] += 1
        return
    out[OUTLIERS] += aside
    out[STRONG] += proof >= STRONG_DECADES
    out[POWERS] += _power_in(found[0], found[1]) > 0
    for fit in fits:
        fit[0], fit[1] = found
    if offset > 0:
        out[SPANS + min(frexp(float(anchor))[1], MOST_BITS)] += 1
    else:
        out[SIGNED + min(1 + max(frexp(float(max(positive, minuses) - 1))[1], frexp(float(min(positive, minuses)))[1]), MOST_BITS)] += 1
        out[SPANS + min(frexp(float(positive + minuses))[1], MOST_BITS)] += 1
        out[LARGEST] = max(out[LARGEST], positive, minuses)
    if powers:  # few patterns: tiles differ by their numbers
        proof = proof if n > 2 else 0.0
        for i in range(patterns.size):
            key = (key * 1000003 + patterns[i] * 31 + numbers[i]) & 0x7FFFFFFFFFFF
    if proof > 0:
        weakest = 0
        for i in range(keys.size):
            if keys[i] == key or keys[i] < 0:
                keys[i], decades[i] = key, max(decades[i], proof)
                return
            weakest = i if decades[i] < decades[weakest] else weakest
        if proof > decades[weakest]:
            keys[weakest], decades[weakest] = key, proof
