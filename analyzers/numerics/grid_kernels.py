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

from math import ceil, log10
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from analyzers.numerics.pattern_kernels import cell, exponent_of, power_in, power_of_two, value_of

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

# In place of the bits of a mantissa: levels are all integers, or of a table
ALL_STEPS, TABLE = 40, 0

_SLOTS = 1024  # of the hash table: four times the number of distinct values that any code book has
_PIECES = 64  # intervals of feasible scales
_FEW, _REPEATS, _MOST_OF_REPEATS = 8, 16, 6.0
_SAME = 4  # equal values of a tile that count if its scale is a power of two
_AGAIN = 2  # at most so many of the largest values are set aside
_TINY = 1e-200  # a product of chances of which the logarithm is taken
_FEWEST = 6  # values of a tile that may have outliers
_NO_FITS = np.empty((0, 5))


@njit(nogil=True, cache=True, error_model="numpy")
def _first_level(book: Floats, side: int, mantissa: int, least: float) -> int:
    """Return the index of the first level that is not below a number.

    mantissa: bits of that of a float whose levels these are, in smallest steps; `ALL_STEPS` if they are integers, `TABLE` otherwise.
    """
    first, end = 0, book.shape[1]
    if mantissa > TABLE:
        exponent = max(exponent_of(least) - 1 - mantissa, 0) if mantissa < ALL_STEPS else 0
        steps = least * power_of_two(-exponent) if exponent > 0 else least
        end = first = max((exponent << mantissa) + ceil(min(steps, end + 1.0)) - 1, 0)
    while first < end:
        middle = (first + end) // 2
        if book[side, middle] < least:
            first = middle + 1
        else:
            end = middle
    return first


@njit(nogil=True, cache=True, error_model="numpy")
def _refine(low: float, high: float, book: Floats, side: int, mantissa: int, pieces: Floats, at: int, count: int) -> int:
    """Intersect the intervals of scales in pieces[at] with those that put [low, high] on a level. Returns the number in pieces[1 - at]."""
    found = 0
    for i in range(count):
        k = _first_level(book, side, mantissa, low / pieces[at, i, 1])
        while k < book.shape[1] and book[side, k] * pieces[at, i, 0] <= high and found < _PIECES:
            least, most = max(pieces[at, i, 0], low / book[side, k]), min(pieces[at, i, 1], high / book[side, k])
            if least <= most:
                pieces[1 - at, found, 0], pieces[1 - at, found, 1] = least, most
                found += 1
            k += 1
    return found


@njit(nogil=True, cache=True, error_model="numpy")
def _different(cells: Floats, negative: Flags, n: int, book: Floats, mantissa: int, scales: Floats) -> bool:
    """Return whether different values may have different levels: one on the border of two cells explains only one of them."""
    for side in range(2):
        k = -1
        for j in range(n):
            if int(negative[j]) == side:
                k = max(k + 1, _first_level(book, side, mantissa, cells[j, 0] / scales[1]))
                if k == book.shape[1] or book[side, k] * scales[0] > cells[j, 1]:
                    return False
    return True


@njit(nogil=True, cache=True, error_model="numpy")
def _fit(cells: Floats, negative: Flags, n: int, book: Floats, mantissa: int, powers: bool, scales: Floats) -> int:
    """Find the coarsest grid: the lowest level that the largest value may have.

    cells: (n, 2) of magnitudes, ascending; negative: their signs; book: (2, levels) magnitudes of positive and of negative levels,
    ascending, padded with infinity; mantissa: as in `_first_level`; powers: whether the scale must be a power of two. Sets scales (2,) to
    the first interval of scales. Returns the index of the level; -1 if there is none.
    """
    pieces, hopeless, size = np.empty((2, _PIECES, 2)), 0, book.shape[1]
    side, lowest = int(negative[n - 1]), -1  # values of one sign have different levels
    for j in range(n):
        lowest += int(negative[j]) == side
    while size > 0 and book[side, size - 1] == np.inf:
        size -= 1
    # Twice the levels of a float are levels too: what those of the highest octave do not explain, their halves do not
    octave = 1 << mantissa if TABLE < mantissa < ALL_STEPS else 0
    for i in range(lowest - octave, size):
        anchor = i if i >= lowest else i - lowest + size
        if i >= lowest and octave > 0 and anchor >= octave - 1 and hopeless >> (anchor % octave) & 1:
            continue
        smallest = _first_level(book, int(negative[0]), mantissa, cells[0, 0] / cells[n - 1, 1] * book[side, anchor])
        if smallest == book.shape[1] or book[int(negative[0]), smallest] > cells[0, 1] / cells[n - 1, 0] * book[side, anchor]:
            continue
        pieces[0, 0, 0], pieces[0, 0, 1] = cells[n - 1, 0] / book[side, anchor], cells[n - 1, 1] / book[side, anchor]
        count: Any = np.int64(1)  # for a literal, `_refine` would be compiled once more
        for j in range(n - 1):
            count = _refine(cells[j, 0], cells[j, 1], book, int(negative[j]), mantissa, pieces, j & 1, count)
            if count == 0:
                break
        if count == 0 and i < lowest:
            hopeless |= 1 << (anchor % octave)
        for k in range(count if i >= lowest else 0):
            low, high = pieces[(n - 1) & 1, k, 0], pieces[(n - 1) & 1, k, 1]
            power = power_in(low, high) if powers else 0.0
            scales[0], scales[1] = (power, power) if powers else (low, high)
            if (not powers or power > 0) and _different(cells, negative, n, book, mantissa, scales):
                return anchor
    return -1


@njit(nogil=True, cache=True, error_model="numpy")
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


@njit(nogil=True, cache=True, error_model="numpy")
def _is_symmetric(book: Floats) -> bool:
    """Return whether the magnitudes of positive and of negative levels are equal."""
    for level in range(book.shape[1]):  # noqa: SIM110 - numba compiles no generators
        if book[0, level] != book[1, level]:
            return False
    return True


@njit(nogil=True, cache=True, error_model="numpy")
def _width(cell_low: float, cell_high: float, value: float, own_bits: int, own_step: float) -> float:
    """Return the width of a cell at the resolution that the values use: ``own_bits`` significant ones, multiples of ``own_step``."""
    return max(cell_high - cell_low, own_step, power_of_two(exponent_of(value) - own_bits))


@njit(nogil=True, cache=True, error_model="numpy")
def _decades(
    cells: Floats, negative: Flags, counts: Ints, book: Floats, mantissa: int, anchor: int, scale: float, powers: bool, own_bits: int,
    own_step: float,
) -> float:  # fmt: skip
    """Bound -log10 of the chance that the magnitudes of a tile pass `_fit` at ``anchor``.

    If scales are powers of two (``powers``), the values have as few bits as the levels, and there are few of them: up to `_SAME` equal
    ones count.
    """
    total, chance, least, distinct = 0.0, 1.0, 1.0, 0
    for j in range(len(cells)):
        if j > 0 and cells[j, 0] == cells[j - 1, 0] and not powers:
            continue
        value, side = (cells[j, 0] + cells[j, 1]) / 2, int(negative[j])
        k = _first_level(book, side, mantissa, value / scale)
        if k == book.shape[1] or (k > 0 and value / scale - book[side, k - 1] < book[side, k] - value / scale):
            k -= 1
        level, below = book[side, k], book[side, k - 1] if k > 0 else 0.0
        above = book[side, k + 1] if k + 1 < book.shape[1] and book[side, k + 1] < np.inf else 2 * level - below
        between = min(level - below, above - level) * scale
        each = min(1.0, _width(cells[j, 0], cells[j, 1], value, own_bits, own_step) / between)
        distinct, least = distinct + 1, min(least, each)
        for _ in range(min(counts[j], _SAME) if powers else 1):
            chance *= each
        if chance < _TINY:
            total, chance = total - log10(chance), 1.0
    total -= log10(chance)
    return total - log10(4.0) if powers else total + log10(least) - log10(distinct * (anchor + 1.0))


@njit(nogil=True, cache=True, error_model="numpy")
def _decades_with_offset(cells: Floats, values: Floats, n: int, span: int, step: float, own_bits: int, own_step: float) -> float:
    """Bound -log10 of the chance that a tile passes `_fit_offset` at ``span``: two values determine step and offset."""
    total, largest, second = 0.0, 0.0, 0.0
    for i in range(n):
        each = -log10(min(1.0, _width(cells[i, 0], cells[i, 1], abs(values[i]), own_bits, own_step) / step))
        total += each
        largest, second = max(largest, each), max(second, min(largest, each))
    return total - largest - second - log10(float(n * n * span))


@njit(nogil=True, cache=True, error_model="numpy")
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
    for i in range(distinct):
        slots[used[i]] = -1
    return distinct


@njit(nogil=True, cache=True, error_model="numpy")
def _sort(patterns: Ints, numbers: Ints, every_bit: int, signed: bool) -> None:
    """Sort patterns by magnitude, or by value if ``signed``, with their numbers."""
    ranks = np.empty(patterns.size, dtype=np.int64)
    for i in range(patterns.size):
        ranks[i] = -(patterns[i] & every_bit) if signed and patterns[i] > every_bit else patterns[i] & every_bit
    for i in range(1, ranks.size):
        rank, pattern, number, j = ranks[i], patterns[i], numbers[i], i
        while j > 0 and ranks[j - 1] > rank:
            ranks[j], patterns[j], numbers[j] = ranks[j - 1], patterns[j - 1], numbers[j - 1]
            j -= 1
        ranks[j], patterns[j], numbers[j] = rank, pattern, number


def test_tiles(
    codes: NDArray[Any], columns: int, first: Ints, shape: Ints, tile: Ints, cut: bool, stride: int, form: Ints, own_step: float,
    book: Floats, out: Ints, keys: Ints, decades: Floats, fits: Floats,
) -> None:  # fmt: skip
    """Test every ``stride``-th tile of a piece of a matrix.

    codes: (rows * columns,) patterns; first: its first row and column in the matrix; shape: of the matrix; tile: rows and columns of a
    tile. Tiles begin at multiples of these; one that the piece has only in part is tested if ``cut``. form: bits of the mantissa and of the
    exponent as stored, significant bits in use, whether the scale is a power of two, whether zero is a level, the most steps of a grid with
    an offset (0: levels of ``book``, as in `_fit`), whether the tile is the whole tensor, `mantissa` of levels, and the exponent of the
    smallest step of a dtype to which values were rounded besides. own_step: the power of two that divides all values. Adds to out
    (GRID_COUNTS,); to keys and decades (ANCHORS,), patterns of the largest values and the evidence of their tiles; sets fits (tiles, 5),
    unless it is empty, for tiles that pass with all of their values, to the lowest and the highest scale, the lowest and the highest level
    in these steps (on a grid with an offset, the lowest and the highest value), and the evidence.
    """
    tests = np.array([[0, 0, book.size, *shape, *tile, cut, stride, *form]], np.int64)
    _test_pieces(codes, columns, first, tests, np.array([own_step]), book.ravel(), out[None], keys[None], decades[None], fits)


def test_forms(
    codes: NDArray[Any], columns: int, first: Ints, tests: Ints, steps: Floats, books: Floats, out: Ints, keys: Ints, decades: Floats
) -> None:
    """Do what `test_tiles` does for several grids and sizes of tiles: once for all, since a call costs as much as a few tiles.

    tests: (tests, 18) row of ``out``, ``keys`` and ``decades``, first and number of its levels in ``books``, and shape, tile, cut, stride,
    form; steps: their own_step.
    """
    _test_pieces(codes, columns, first, tests, steps, books, out, keys, decades, _NO_FITS)


@njit(nogil=True, cache=True, error_model="numpy")
def _test_pieces(
    codes: NDArray[Any], columns: int, first: Ints, tests: Ints, steps: Floats, books: Floats, out: Ints, keys: Ints, decades: Floats,
    fits: Floats,
) -> None:  # fmt: skip
    """Do the tests of `test_forms`, and set ``fits`` as `test_tiles` does."""
    slots = np.empty(_SLOTS, dtype=np.int64)
    for i in range(_SLOTS):
        slots[i] = -1
    patterns, numbers = np.empty(_AGAIN + 2 + _SLOTS // 2, dtype=np.int64), np.empty(_AGAIN + 2 + _SLOTS // 2, dtype=np.int64)
    rows = codes.size // columns
    for i in range(len(tests)):
        test, target, form = tests[i], tests[i, 0], tests[i, 9:]
        book = books[test[1] : test[1] + test[2]].reshape((2, -1))
        high, wide, cut, stride, every_bit, offset = test[5], test[6], test[7] != 0, test[8], (1 << (form[0] + form[1])) - 1, form[5]
        limit = _AGAIN + 2 + min(offset if offset > 0 else 2 * book.shape[1], _SLOTS // 2)
        highest, leftmost = first[0] // high, first[1] // wide
        across = (first[1] + columns - 1) // wide + 1 - leftmost
        for number in range(0, ((first[0] + rows - 1) // high + 1 - highest) * across, stride):
            down, right = highest + number // across, leftmost + number % across
            top, bottom = max(down * high, first[0]), min((down + 1) * high, first[0] + rows)
            left, end = max(right * wide, first[1]), min((right + 1) * wide, first[1] + columns)
            whole = top == down * high and bottom == min((down + 1) * high, test[3])
            if cut or (whole and left == right * wide and end == min((right + 1) * wide, test[4])):
                row = (columns, left - first[1], end - first[1])
                distinct = _distinct(codes, (top - first[0], bottom - first[0]), row, every_bit, slots, patterns[:limit], numbers)
                if distinct == limit:
                    out[target, TESTED] += 1
                    out[target, FAILED] += 1
                else:
                    _sort(patterns[:distinct], numbers[:distinct], every_bit, offset > 0)
                    _test(
                        patterns[:distinct], numbers[:distinct], form, steps[i], book, out[target], keys[target], decades[target],
                        fits[number : number + 1],
                    )  # fmt: skip


@njit(nogil=True, cache=True, error_model="numpy")
def _test(
    patterns: Ints, numbers: Ints, form: Ints, own_step: float, book: Floats, out: Ints, keys: Ints, decades: Floats, fits: Floats
) -> None:
    """Test a tile, given by its distinct patterns in the order of `_sort` and their numbers; see `test_tiles`."""
    mantissa, exponent, own_bits, powers, has_zero, offset, levels = form[0], form[1], form[2], form[3] != 0, form[4] != 0, form[5], form[7]
    every_bit = (1 << (mantissa + exponent)) - 1
    cells, values = np.empty((patterns.size, 2)), np.empty(patterns.size)
    negative, counts = np.empty(patterns.size, dtype=np.bool_), np.empty(patterns.size, dtype=np.int64)
    n: Any = np.int64(0)  # for a literal, all that is called with it would be compiled once more
    zeros = aside = key = 0
    for i in range(patterns.size):
        magnitude, minus = patterns[i] & every_bit, patterns[i] > every_bit
        if magnitude >> mantissa == (1 << exponent) - 1:
            aside += numbers[i]
        elif magnitude == 0 and offset == 0:
            zeros += numbers[i]
        else:
            value, (low, high) = value_of(magnitude, mantissa, exponent), cell(magnitude, mantissa, exponent)
            low, high = min(low, value - power_of_two(form[8]) / 2), max(high, value + power_of_two(form[8]) / 2)
            cells[n, 0], cells[n, 1] = (-high, -low) if minus and offset > 0 else (low, high)
            values[n] = value * (-1 if minus and offset > 0 else 1)
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
        dropped = 0
        while True:
            anchor = _fit(cells, negative, n, book, levels, powers, found)
            if anchor < 0 and levels == TABLE and not _is_symmetric(book):  # the scale may be negative
                for i in range(n):
                    negative[i] = not negative[i]
                anchor = _fit(cells, negative, n, book, levels, powers, found)
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
            proof = _decades(cells[:n], negative[:n], counts[:n], book, levels, anchor, middle, powers, own_bits, own_step) - 0.5 * dropped
            if levels == ALL_STEPS and zeros > 0 and positive > 0 and minuses > 0 and max(positive, minuses) <= (_FEW if form[6] else 1):
                again = repeats * max(0.0, -log10(min(1.0, _width(cells[0, 0], cells[0, 1], values[0], own_bits, own_step) / middle)))
                proof += again if max(positive, minuses) == 1 else min(again, _MOST_OF_REPEATS)
    if anchor < 0 or (offset > 0 and anchor == 0):
        out[FAILED] += 1
        return
    out[OUTLIERS] += aside
    out[STRONG] += proof >= STRONG_DECADES
    out[POWERS] += power_in(found[0], found[1]) > 0
    if aside == 0:
        for fit in fits:
            fit[0], fit[1] = found
            fit[2], fit[3] = (values[0], values[n - 1]) if offset > 0 else (-float(minuses), float(positive))
            fit[4] = proof
    if offset > 0:
        out[SPANS + min(exponent_of(anchor + 0.5), MOST_BITS)] += 1
    else:
        out[SIGNED + min(1 + max(exponent_of(max(positive, minuses) - 0.5), exponent_of(min(positive, minuses) + 0.5)), MOST_BITS)] += 1
        out[SPANS + min(exponent_of(positive + minuses + 0.5), MOST_BITS)] += 1
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
