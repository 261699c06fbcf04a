"""Fits a scaled grid to tiles of stored values: is there a scale that makes every value a level, up to rounding?

A stored value v stands for its cell [low, high], the numbers that round to it. If v is the level l times the scale s, then s is in
[low / l, high / l]. The scales that explain a tile are the intersection, over its values, of the union of these intervals over the levels.

The chance that a tile without a grid passes is bounded by the sum, over the scales that put one value exactly on a level, of the
probability that all others are on levels too: each is with the probability (width of its cell) / (distance of the levels). Equal
magnitudes count once.
"""

from math import ceil, log10
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

# Numbers of tiles that were tested (all but zeros), that no scale explains, and whose scale may be a power of two
TESTED, FAILED, POWERS = range(3)
MOST_BITS = 8
# Of the evidence of tiles whose largest values may be the same, only the strongest counts
SLOTS = 64

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_TABLE = 1 << 10  # slots of the hash table
_PIECES = 64  # intervals of feasible scales
_FEW_LEVELS, _REPEATS, _MOST_OF_REPEATS = 8, 16, 6.0
_FP16_STEP = 2.0**-24
_NEIGHBOURS = 16
_EXACT_STEPS = 8  # subnormals of so many steps are rounded by at most 1/16


class Levels(NamedTuple):
    """Levels of a format. sides: (2, n) magnitudes of positive and negative ones, ascending, then infinite.

    first: index of the lowest level that the largest value of a tile may have; tolerance: relative difference between writers' tables;
    integers: whether the levels are all integers, of which a tile may use those of `MOST_BITS` bits. reach: of the levels of a float, the
    ratio of magnitudes under one scale that integers and shorter floats do not have; 0 for other levels. significands: fewest of the values
    that reach so far, since powers of two are on the levels of any float.
    """

    sides: Floats
    first: int
    tolerance: float
    integers: bool
    reach: float = 0.0
    significands: int = 0

    @property
    def floats(self) -> bool:
        """Whether the levels are those of a float, so that few significant bits are a property of the format and not of the values."""
        return self.reach > 0


class Counts(NamedTuple):
    """Counts of tiles.

    tiles: (3,) see `TESTED`; spans, signed: (MOST_BITS + 2,) those that pass, by the bits of integers with a zero point and of signed ones,
    1 if they are -1, 0 and 1; decades: (SLOTS,) -log10 of the chance of a tile, by its largest value, of floats by all; reaching: (1,)
    blocks of `_NEIGHBOURS`, in tiles on the levels of a float, that reach too far for other formats.
    """

    tiles: Ints
    spans: Ints
    signed: Ints
    decades: Floats
    reaching: Ints

    @classmethod
    def zeros(cls) -> "Counts":
        """Return counts of nothing."""
        by_bits = np.zeros((2, MOST_BITS + 2), np.int64)
        return cls(np.zeros(3, np.int64), by_bits[0], by_bits[1], np.zeros(SLOTS), np.zeros(1, np.int64))


class _Values(NamedTuple):
    """Distinct values of a tile, ascending by magnitude: low and high end of the cell, its width at the resolution in use, sign, number."""

    low: Floats
    high: Floats
    width: Floats
    negative: Ints
    number: Ints


@njit(nogil=True, cache=True, error_model="numpy")
def fit_tiles(
    codes: NDArray[Any], first: tuple[int, int], tile: tuple[int, int], every: int, field: tuple[int, int], levels: Levels, counts: Counts,
    scales: Floats,
) -> None:  # fmt: skip
    """Fit ``levels`` to every ``every``-th tile of a piece of a matrix.

    codes: (rows, columns) patterns; first: row and column of the matrix at which they begin; tile: rows and columns that share a scale, at
    multiples of these, parts of tiles included; field: bits of the mantissa and of the exponent. Adds to ``counts``; sets scales (tiles, 2)
    to the lowest and highest scale of a tile, 0 if there is none.
    """
    rows, columns = codes.shape
    top, left = first[0] // tile[0], first[1] // tile[1]
    down, across = (first[0] + rows - 1) // tile[0] + 1 - top, (first[1] + columns - 1) // tile[1] + 1 - left
    table, patterns, numbers = np.full(_TABLE, -1, np.int64), np.empty(_TABLE, np.int64), np.empty(_TABLE, np.int64)
    most = min((1 << MOST_BITS) if levels.integers else 2 * levels.sides.shape[1], _TABLE // 2)
    for index in range(0, down * across, every):
        row, column = (top + index // across) * tile[0] - first[0], (left + index % across) * tile[1] - first[1]
        part = codes[max(row, 0) : row + tile[0], max(column, 0) : column + tile[1]]
        distinct, zeros = _distinct(part, (1 << (field[0] + field[1])) - 1, most, table, patterns, numbers)
        if distinct > 0:
            counts.tiles[TESTED] += 1
            if distinct > most or not _fit(part, patterns[:distinct], numbers[:distinct], zeros, field, levels, counts, scales[index]):
                counts.tiles[FAILED] += 1


# Patterns as numbers: `frexp` and `ldexp` would be calls of C.
@njit(nogil=True, cache=True, error_model="numpy")
def _exponent_of(value: float) -> int:
    """Return the exponent that `frexp` does, of a number of normal size."""
    return int((np.float64(value).view(np.int64) >> 52) & 0x7FF) - 1022


@njit(nogil=True, cache=True, error_model="numpy")
def _power_of_two(exponent: int) -> float:
    """Return 2 to the power of a number."""
    power: float = np.int64((exponent + 1023) << 52).view(np.float64)
    return power


@njit(nogil=True, cache=True, error_model="numpy")
def _power_in(low: float, high: float) -> float:
    """Return the power of two between two positive numbers; 0 if there is none."""
    power = _power_of_two(_exponent_of(low))
    power = power / 2 if power / 2 == low else power
    return power if power <= high else 0.0


@njit(nogil=True, cache=True, error_model="numpy")
def _value_of(magnitude: int, mantissa: int, exponent: int) -> float:
    """Return the value of a pattern without sign."""
    stored = magnitude >> mantissa
    whole = (magnitude & ((1 << mantissa) - 1)) + ((1 << mantissa) if stored > 0 else 0)
    return whole * _power_of_two(max(stored, 1) - ((1 << (exponent - 1)) - 1) - mantissa)


@njit(nogil=True, cache=True, error_model="numpy")
def _hash(pattern: int) -> int:
    """Return 32 bits to which all bits of a pattern contribute, also those of a bf16 value in fp32."""
    return ((pattern ^ pattern >> 16) * 0x9E3779B1) >> 12 & 0xFFFFFFFF


@njit(nogil=True, cache=True, error_model="numpy")
def _distinct(part: NDArray[Any], every_bit: int, most: int, table: Ints, patterns: Ints, numbers: Ints) -> tuple[int, int]:
    """Set the distinct patterns of a tile except zeros, and their numbers. Returns how many there are, at most ``most`` + 1, and the zeros.

    table: of hashes; empty (-1) before and after.
    """
    used = np.empty(most + 1, np.int64)
    distinct, zeros = 0, 0
    for i in range(part.shape[0]):
        for j in range(part.shape[1]):
            code: Any = np.int64(part[i, j])
            if code & every_bit == 0:
                zeros += 1
                continue
            slot = _hash(code) & (_TABLE - 1)
            while table[slot] >= 0 and patterns[table[slot]] != code:
                slot = (slot + 1) & (_TABLE - 1)
            if table[slot] < 0:
                table[slot], patterns[distinct], used[distinct], numbers[distinct] = distinct, code, slot, 0
                distinct += 1
            numbers[table[slot]] += 1
            if distinct > most:
                break
        if distinct > most:
            break
    for i in range(distinct):
        table[used[i]] = -1
    return distinct, zeros


@njit(nogil=True, cache=True, error_model="numpy")
def _fit(
    part: NDArray[Any], patterns: Ints, numbers: Ints, zeros: int, field: tuple[int, int], levels: Levels, counts: Counts, scale: Floats
) -> bool:
    """Fit levels to the distinct patterns of one tile; set its scales and add to the counts of those that pass. Returns whether it does."""
    if not _is_finite(patterns, field):
        return False
    values = _values(patterns, numbers, field, levels)
    found = np.empty(2)
    anchor = _coarsest(values, levels, found)
    if anchor < 0:
        return False
    power = _power_in(found[0], found[1]) > 0
    proof = _decades(values, levels, anchor, (found[0] + found[1]) / 2)
    if levels.integers:
        positive, negative, repeats = 0, 0, 0
        for j in range(len(values.low)):
            step: Any = np.int64(ceil(values.low[j] / found[1] - 1e-9))
            positive, negative = max(positive, step * (1 - values.negative[j])), max(negative, step * values.negative[j])
            repeats += min(values.number[j] - 1, _REPEATS)
        span = _exponent_of(positive + negative + 0.5)
        if span > MOST_BITS:
            return False
        signed = 1 + max(_exponent_of(max(positive, negative) - 0.5), _exponent_of(min(positive, negative) + 0.5))
        ternary = max(positive, negative) == 1
        counts.spans[1 if ternary else span] += 1
        counts.signed[1 if ternary else signed] += 1
        if zeros > 0 and positive > 0 and negative > 0 and max(positive, negative) <= _FEW_LEVELS:  # repeats are all there is to see
            again = -repeats * log10(min(1.0, values.width[0] / found[0]))
            proof += again if ternary else min(again, _MOST_OF_REPEATS)
        if power or _is_ramp(part, field):  # fixed point, or no independent values: chance says nothing
            proof = 0.0
    if levels.reach > 0:
        counts.reaching[0] += _reaching(part, field, levels)
    counts.tiles[POWERS] += power
    scale[:] = found
    slot = _hash(patterns.sum() if levels.reach > 0 else patterns.max()) % SLOTS
    counts.decades[slot] = max(counts.decades[slot], proof)
    return True


@njit(nogil=True, cache=True, error_model="numpy")
def _is_finite(patterns: Ints, field: tuple[int, int]) -> bool:
    largest = (1 << field[1]) - 1
    for pattern in patterns:  # noqa: SIM110 - numba compiles no generators
        if pattern >> field[0] & largest == largest:
            return False
    return True


@njit(nogil=True, cache=True, error_model="numpy")
def _values(patterns: Ints, numbers: Ints, field: tuple[int, int], levels: Levels) -> _Values:
    """Return the distinct values of a tile with their cells.

    They were rounded last to bf16 if 8 significant bits hold all of them, else to fp16 if 11 do, and may have been rounded to multiples of
    2^-24 if all are such. In fp32 they may be off by an ulp.
    """
    mantissa, every_bit = field[0], (1 << (field[0] + field[1])) - 1
    _sort(patterns, numbers, every_bit)
    n = len(patterns)
    low, high, width, negative, number = np.empty(n), np.empty(n), np.empty(n), np.empty(n, np.int64), np.empty(n, np.int64)
    bits, step = 0, np.inf
    for j in range(n):
        magnitude = patterns[j] & every_bit
        low[j], number[j], negative[j] = _value_of(magnitude, mantissa, field[1]), numbers[j], patterns[j] > every_bit
        whole: Any = magnitude & ((1 << mantissa) - 1) | (1 << mantissa if magnitude >> mantissa > 0 else 0)
        odd = whole // (whole & -whole)
        bits, step = max(bits, _exponent_of(odd + 0.5)), min(step, low[j] / odd)
    rounded = 8 if bits <= 8 else 11 if bits <= 11 else 24
    for j in range(n):
        value, exponent = low[j], _exponent_of(low[j])
        half = _power_of_two(exponent - 24) if rounded == 24 else _power_of_two(exponent - rounded - 1) + value * 2.0**-23
        if step >= _FP16_STEP:
            half += _FP16_STEP / 2 if half < _FP16_STEP / 2 else 0.0
        half += value * levels.tolerance
        low[j], high[j], width[j] = value - half, value + half, 2 * half
        if levels.reach == 0:
            width[j] = max(width[j], step, _power_of_two(exponent - bits))
    return _Values(low, high, width, negative, number)


@njit(nogil=True, cache=True, error_model="numpy")
def _sort(patterns: Ints, numbers: Ints, every_bit: int) -> None:
    """Sort patterns by magnitude, with their numbers; they are few."""
    for i in range(1, len(patterns)):
        pattern, number, j = patterns[i], numbers[i], i
        while j > 0 and patterns[j - 1] & every_bit > pattern & every_bit:
            patterns[j], numbers[j] = patterns[j - 1], numbers[j - 1]
            j -= 1
        patterns[j], numbers[j] = pattern, number


@njit(nogil=True, cache=True, error_model="numpy")
def _first_level(levels: Levels, side: int, least: float) -> int:
    """Return the index of the first level that is not below a number."""
    if levels.integers:
        integer: int = ceil(min(least, levels.sides.shape[1] + 1.0))
        return integer - 1
    return int(np.searchsorted(levels.sides[side], least))


@njit(nogil=True, cache=True, error_model="numpy")
def _coarsest(values: _Values, levels: Levels, scale: Floats) -> int:
    """Find the lowest level that the largest value may have, -1 if no scale explains all. Sets ``scale`` to the first such interval."""
    last = len(values.low) - 1
    largest_level, pieces = levels.sides[values.negative[last]], np.empty((2, _PIECES, 2))
    below = int(np.count_nonzero(values.negative[:last] == values.negative[last]))  # each has a level of its own
    lowest: int = max(levels.first, below)
    for anchor in range(lowest, len(largest_level)):
        if largest_level[anchor] == np.inf:
            break
        pieces[0, 0, 0], pieces[0, 0, 1] = values.low[last] / largest_level[anchor], values.high[last] / largest_level[anchor]
        count: Any = np.int64(1)
        for j in range(last):
            side, found = levels.sides[values.negative[j]], 0
            for i in range(count):
                low, high = pieces[j & 1, i]
                k = _first_level(levels, values.negative[j], values.low[j] / high)
                while k < len(side) and side[k] * low <= values.high[j] and found < _PIECES:
                    least, most = max(low, values.low[j] / side[k]), min(high, values.high[j] / side[k])
                    if least <= most:
                        pieces[1 - (j & 1), found, 0], pieces[1 - (j & 1), found, 1] = least, most
                        found += 1
                    k += 1
            count = found
            if count == 0:
                break
        for i in range(count):
            if _are_different(values, levels, pieces[last & 1, i]):
                scale[:] = pieces[last & 1, i]
                return anchor
    return -1


@njit(nogil=True, cache=True, error_model="numpy")
def _are_different(values: _Values, levels: Levels, scale: Floats) -> bool:
    """Return whether different values may have different levels: one between two cells explains only one of them."""
    for negative in range(2):
        side, k = levels.sides[negative], -1
        for j in range(len(values.low)):
            if values.negative[j] == negative:
                k = max(k + 1, _first_level(levels, negative, values.low[j] / scale[1]))
                if k >= len(side) or side[k] * scale[0] > values.high[j]:
                    return False
    return True


@njit(nogil=True, cache=True, error_model="numpy")
def _decades(values: _Values, levels: Levels, anchor: int, scale: float) -> float:
    """Bound -log10 of the chance that the values of a tile pass at ``anchor``; those on the same level count once."""
    total, least, distinct, previous = 0.0, 1.0, 0, -1
    for j in range(len(values.low)):
        side, steps = levels.sides[values.negative[j]], (values.low[j] + values.high[j]) / 2 / scale
        k = _first_level(levels, values.negative[j], steps)
        if k == len(side) or (k > 0 and steps - side[k - 1] < side[k] - steps):
            k -= 1
        if k == previous or (j > 0 and values.low[j] == values.low[j - 1]):
            continue
        below = side[k - 1] if k > 0 else 0.0
        above = side[k + 1] if k + 1 < len(side) and side[k + 1] < np.inf else 2 * side[k] - below
        chance = min(1.0, values.width[j] / (min(side[k] - below, above - side[k]) * scale))
        total, least, distinct, previous = total - log10(chance), min(least, chance), distinct + 1, k
    return total + log10(least) - log10(distinct * (anchor + 1.0 - levels.first))


@njit(nogil=True, cache=True, error_model="numpy")
def _is_ramp(part: NDArray[Any], field: tuple[int, int]) -> bool:
    """Return whether the values of a tile, row by row, ascend or descend throughout."""
    every_bit = (1 << (field[0] + field[1])) - 1
    ascends, descends = True, True
    before: Any = np.int64(0)
    for i in range(part.shape[0]):
        for j in range(part.shape[1]):
            code: Any = np.int64(part[i, j])
            rank = code if code <= every_bit else -(code & every_bit)
            if i + j > 0:
                ascends, descends = ascends and rank >= before, descends and rank <= before
            before = rank
            if not (ascends or descends):
                return False
    return True


@njit(nogil=True, cache=True, error_model="numpy")
def _reaching(part: NDArray[Any], field: tuple[int, int], levels: Levels) -> int:
    """Count the blocks of neighbours whose magnitudes have a ratio of ``levels.reach`` or more, and enough significands.

    Neighbours, because smaller tiles than this one may have powers of two as scales. Subnormals of few steps have lost their magnitudes.
    """
    mantissa, every_bit = field[0], (1 << (field[0] + field[1])) - 1
    rows, found, block = part if part.shape[1] > 1 else part.T, 0, np.int64(0)
    seen = np.zeros(1 << 7, np.int64)  # the last block, numbered from 1 on, in which a significand occurs, by its first bits
    for row in rows:
        for start in range(0, row.size, _NEIGHBOURS):
            block += 1
            least, most, significands = np.inf, 0.0, 0
            for code in row[start : start + _NEIGHBOURS]:
                magnitude: Any = np.int64(code) & every_bit
                if magnitude >= _EXACT_STEPS:
                    value = _value_of(magnitude, mantissa, field[1])
                    least, most = min(least, value), max(most, value)
                    bits = magnitude >> (mantissa - 7) & 127
                    significands += (magnitude >> mantissa > 0) & (seen[bits] < block)
                    seen[bits] = block
            found += (most >= levels.reach * least) & (significands >= levels.significands)
    return found
