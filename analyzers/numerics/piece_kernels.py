"""Sums over pieces of two matrices X and P in compiled loops, for the analysis of parents.

Patterns are those of fp32, or of bf16, which ``shift`` turns into those of fp32. A piece is a few rows, or a part of one. Here only
*regular* pieces are counted: all values finite, smaller than any weight may be and not subnormal, no block constant on either side, no
difference out of proportion, rows that do not resemble the next. The others, which are few, are left to `analyzers.parents.count`.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

BLOCK = 4096  # values that share an entry of a Gram matrix, and may be constant together
FAR = 16  # typical values; a larger difference cannot be an update of a weight
# Rows are smooth if each resembles the next by this much, as in tables of positions: their equality is neither coincidence nor proof.
SMOOTH, FEWEST_ROWS = 0.2, 4

# Columns of the sums of a piece: number of values, of those equal in bf16 and as stored, of zeros in X only and in P only; sum of (x p)^2;
# sums of the squared binades of X and of P; numbers equal as cast: directly, through fp16, through bf16. NUMBER is 0 if it is not regular.
NUMBER, EQUAL, EXACT, ZERO_X, ZERO_P, PRODUCT, BINADES_X, BINADES_P, CAST, CAST_F16, CAST_BF16 = range(11)
SUMS = 11

# Formats to which values are rounded
F32, F16, BF16 = range(3)

_MAGNITUDE = 0x7FFFFFFF
_EXPONENT = 0x7F800000
_NORMAL = 0x00800000
_BEYOND = 0x49742400  # pattern of 1e6: no weight is this large
_ALMOST = 1 - 1e-6  # differences are taken in float32 at first
_SIGNS = 1024  # values of a piece whose signs are compared with those of the next row
_FEWEST_COLUMNS = 16


@njit(nogil=True, cache=True)
def _survey(x: NDArray[Any], p: NDArray[Any], shift: Any) -> tuple[Any, Any, Any, Any, Any, Any]:
    """Return how many patterns differ, bounds of |patterns|, the sums of biased exponents, and the pattern of the largest difference."""
    differ, bound, least = np.uint32(0), np.uint32(0), np.uint32(_MAGNITUDE)
    of_x, of_p, apart = np.uint32(0), np.uint32(0), np.uint32(0)
    for i in range(x.size):
        a, b = np.uint32(np.uint32(x[i]) << shift), np.uint32(np.uint32(p[i]) << shift)
        v, w = np.uint32(a & _MAGNITUDE), np.uint32(b & _MAGNITUDE)
        differ += np.uint32(a != b)
        bound |= np.uint32(v | w)
        least = min(least, min(v, w))
        of_x += np.uint32(v >> np.uint32(23))
        of_p += np.uint32(w >> np.uint32(23))
        difference = np.float32(a.view(np.float32) - b.view(np.float32))
        apart = max(apart, np.uint32(difference.view(np.uint32) & _MAGNITUDE))  # integers, which are ordered alike, are compared faster
    return differ, bound, least, of_x, of_p, apart


@njit(nogil=True, cache=True)
def _extremes(x: NDArray[Any], shift: Any) -> tuple[Any, Any, Any]:
    """Return the largest |pattern|, and the numbers of zeros and of subnormals."""
    largest, zeros, tiny = np.uint32(0), np.int64(0), np.int64(0)
    for i in range(x.size):
        v = np.uint32(np.uint32(np.uint32(x[i]) << shift) & _MAGNITUDE)
        largest = max(largest, v)
        zeros += v == 0
        tiny += 0 < v < _NORMAL
    return largest, zeros, tiny


@njit(nogil=True, cache=True)
def _has_constant_block(x: NDArray[Any], shift: Any) -> bool:
    """Return whether a block holds one value; +0 = -0."""
    start: Any = np.int64(0)
    while start < x.size:
        stop: Any = min(start + BLOCK, x.size)
        at: Any = start
        first = np.uint32(np.uint32(x[start]) << shift).view(np.float32)
        while at < stop and np.uint32(np.uint32(x[at]) << shift).view(np.float32) == first:
            at += 1
        if at == stop:
            return True
        start = stop
    return False


@njit(nogil=True, cache=True)
def _may_be_smooth(
    x: NDArray[Any], shift: Any, width: Any, table: NDArray[np.float64], mask: NDArray[np.float64], means: NDArray[np.float64]
) -> bool:  # fmt: skip
    """Return whether rows of ``width`` may resemble the next by more than `SMOOTH`, to judge from some columns.

    Compares signs as `analyzers.parents.shared_structure.is_smooth` does. table, mask, means: buffers.
    """
    rows = x.size // width
    if rows < FEWEST_ROWS:
        return False
    columns = min(width, max(_FEWEST_COLUMNS, _SIGNS // rows))
    step = max(np.int64(1), (width // columns - 1) | 1)
    whole, every = 0.0, 0.0
    for c in range(2 * columns):
        means[c] = 0.0
    for r in range(rows):
        total, low, high = 0.0, np.inf, -np.inf
        for c in range(columns):
            v = np.float64(np.uint32(np.uint32(x[r * width + c * step]) << shift).view(np.float32))
            table[r * columns + c] = v
            total += v
            low, high = min(low, v), max(high, v)
            means[c] += v
        whole += total
        for c in range(columns):
            at = r * columns + c
            mask[at] = 1.0 if table[at] != 0 and high > low else 0.0
            table[at] -= total / columns
    whole /= rows * columns
    for r in range(rows):
        for c in range(columns):
            at = r * columns + c
            v = table[at] + whole - means[c] / rows
            table[at] = mask[at] * (1.0 if v > 0 else -1.0 if v < 0 else 0.0)
    for c in range(2 * columns):
        means[c] = 0.0
    whole = 0.0
    for r in range(rows):
        total, number = 0.0, 0.0
        for c in range(columns):
            at = r * columns + c
            total += table[at]
            number += mask[at]
            means[c] += table[at]
            means[columns + c] += mask[at]
        whole += total
        every += number
        for c in range(columns):
            table[r * columns + c] -= total / max(number, 1.0)
    product, square = 0.0, 0.0
    for r in range(rows):
        for c in range(columns):
            at = r * columns + c
            table[at] = (table[at] + whole / max(every, 1.0) - means[c] / max(means[columns + c], 1.0)) * mask[at]
            if r > 0:
                product += table[at] * table[at - columns]
                square += table[at] * table[at]
    return product > SMOOTH / 2 * square


@njit(nogil=True, cache=True)
def screen_pieces(x: NDArray[Any], p: NDArray[Any], shift: Any, piece: int, width: int, differ: NDArray[np.int64]) -> None:
    """Set ``differ``, (pieces,), to the numbers of patterns of X and P that differ in each piece; to -1 if it is not regular.

    x, p: (n,) patterns in rows of ``width``. Pieces whose entry is negative are left out.
    """
    table, mask, means = np.empty(piece), np.empty(piece), np.empty(2 * piece)
    for number in range(differ.size):
        if differ[number] < 0:
            continue
        start = number * piece
        stop = min(start + piece, x.size)
        a, b = x[start:stop], p[start:stop]
        differ[number] = -1
        found, bound, least, of_x, of_p, apart = _survey(a, b, shift)
        nonzero_x, nonzero_p = a.size, b.size
        if bound >= _BEYOND or least < _NORMAL:
            largest_x, zeros_x, tiny_x = _extremes(a, shift)
            largest_p, zeros_p, tiny_p = _extremes(b, shift)
            if max(largest_x, largest_p) >= _BEYOND or tiny_x > 0 or tiny_p > 0:
                continue
            nonzero_x -= zeros_x
            nonzero_p -= zeros_p
        # The typical value of a side is the geometric mean of those that are not 0, in whole binades; exponents as those of frexp.
        typical_x, typical_p = (of_x - 126 * nonzero_x) / max(nonzero_x, 1), (of_p - 126 * nonzero_p) / max(nonzero_p, 1)
        if (
            np.uint32(apart).view(np.float32) > _ALMOST * FAR * 2.0 ** max(typical_x, typical_p)
            or _has_constant_block(a, shift)
            or _has_constant_block(b, shift)
        ):
            continue
        # Few differences cannot make rows of P smooth if those of X are far from it.
        if _may_be_smooth(a, shift, width, table, mask, means):
            continue
        if _SIGNS * found > 16 * a.size and _may_be_smooth(b, shift, width, table, mask, means):
            continue
        differ[number] = found


# Float64 sums may be reassociated, so that vector additions are possible.
@njit(nogil=True, cache=True, fastmath={"reassoc", "contract", "nsz"})
def _add_equal(x: NDArray[Any], p: NDArray[Any], shift: Any, least: Any) -> tuple[float, float, float]:
    """Return the sums of x^2, of x^4, and of the squared binades of x, where X and P are equal. least: the smallest binade."""
    squares, fourth, binades = 0.0, 0.0, 0.0
    for i in range(x.size):
        a, b = np.uint32(np.uint32(x[i]) << shift), np.uint32(np.uint32(p[i]) << shift)
        same = np.uint32(a) if a == b else np.uint32(0)
        v, binade = np.float64(np.uint32(same).view(np.float32)), np.uint32(same & _EXPONENT).view(np.float32)
        normal = np.float64(least if (binade > 0) & (binade < least) else binade)
        squares += v * v
        fourth += (v * v) * (v * v)
        binades += normal * normal
    return squares, fourth, binades


@njit(nogil=True, cache=True)
def _bf16(pattern: Any) -> Any:
    """Return the bf16 pattern of a finite fp32 pattern, rounded to nearest even."""
    return np.uint32(pattern + np.uint32(0x7FFF) + ((pattern >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)


@njit(nogil=True, cache=True)
def _count_patterns(
    x: NDArray[Any], p: NDArray[Any], shift: Any, histograms: NDArray[np.int64], at: NDArray[np.int32], differ: Any
) -> None:  # fmt: skip
    """Add the bf16 patterns to ``histograms``, and set ``at`` to the indices of the ``differ`` patterns that differ."""
    found = np.int64(0)
    for i in range(x.size):  # branch-free: a branch would often be mispredicted
        pattern = np.uint32(x[i]) if shift > 0 else _bf16(np.uint32(x[i]))
        histograms[0, np.uint64(pattern)] += 1  # unsigned: numba would add a check for negative indices
        at[found] = i
        found += x[i] != p[i]
    for i in range(differ):
        a, b = np.uint32(np.uint32(x[at[i]]) << shift), np.uint32(np.uint32(p[at[i]]) << shift)
        v, w = np.uint64(_bf16(a)), np.uint64(_bf16(b))
        histograms[1, v] += v != w
        histograms[2, w] += v != w


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract", "nsz"})
def _add_differing(
    x: NDArray[Any], p: NDArray[Any], shift: Any, at: NDArray[np.int32], least_x: Any, least_p: Any, sums: NDArray[np.float64],
    grams: NDArray[np.float64],
) -> None:  # fmt: skip
    """Add the pairs at the indices ``at`` of a block, whose patterns differ. grams: (3,)."""
    equal, same, zero_x, zero_p = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    xx, xp, pp, products, binades_x, binades_p = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for i in range(at.size):
        a, b = np.uint32(np.uint32(x[at[i]]) << shift), np.uint32(np.uint32(p[at[i]]) << shift)
        v, w = np.float64(a.view(np.float32)), np.float64(b.view(np.float32))
        no_x, no_p = (a & _MAGNITUDE) == 0, (b & _MAGNITUDE) == 0
        same += no_x & no_p
        equal += (_bf16(a) == _bf16(b)) | (no_x & no_p)
        zero_x += no_x & (not no_p)
        zero_p += no_p & (not no_x)
        xx += v * v
        xp += v * w
        pp += w * w
        products += (v * w) * (v * w)
        binade_x, binade_p = np.uint32(a & _EXPONENT).view(np.float32), np.uint32(b & _EXPONENT).view(np.float32)
        normal_x = np.float64(least_x if (binade_x > 0) & (binade_x < least_x) else binade_x)
        normal_p = np.float64(least_p if (binade_p > 0) & (binade_p < least_p) else binade_p)
        binades_x += normal_x * normal_x
        binades_p += normal_p * normal_p
    sums[EQUAL] += equal
    sums[EXACT] += same
    sums[ZERO_X] += zero_x
    sums[ZERO_P] += zero_p
    sums[PRODUCT] += products
    sums[BINADES_X] += binades_x
    sums[BINADES_P] += binades_p
    grams[0] += xx
    grams[1] += xp
    grams[2] += pp


@njit(nogil=True, cache=True)
def count_pieces(
    x: NDArray[Any], p: NDArray[Any], shift: Any, piece: int, differ: NDArray[np.int64], least_x: Any, least_p: Any,
    histograms: NDArray[np.int64], sums: NDArray[np.float64], grams: NDArray[np.float64],
) -> None:  # fmt: skip
    """Count the regular pieces of X and P, by what `screen_pieces` found.

    least_x, least_p: float32, the smallest binade of normal numbers of the two formats. Added to: ``histograms`` (3, 65536), the bf16
    patterns of X, and those of X and of P where the two differ in bf16; ``sums`` (pieces, SUMS), but for casts; ``grams`` (pieces, blocks,
    3), sums of x^2, of x p and of p^2.
    """
    at = np.empty(piece + 1, np.int32)
    for number in range(differ.size):
        if differ[number] < 0:
            continue
        start: Any = number * piece
        stop = min(start + piece, x.size)
        a, b, row = x[start:stop], p[start:stop], sums[number]
        row[NUMBER] = a.size
        row[EQUAL] = row[EXACT] = a.size - differ[number]
        _count_patterns(a, b, shift, histograms, at, differ[number])
        block, first, start = np.int64(0), np.int64(0), np.int64(0)
        while start < a.size:
            stop = min(start + BLOCK, a.size)
            squares, fourth, binades = _add_equal(a[start:stop], b[start:stop], shift, least_x)
            row[PRODUCT] += fourth
            row[BINADES_X] += binades
            if least_p != least_x:
                binades = _add_equal(a[start:stop], b[start:stop], shift, least_p)[2]
            row[BINADES_P] += binades
            for column in range(3):
                grams[number, block, column] += squares
            last = first
            while last < differ[number] and at[last] < stop:
                last += 1
            _add_differing(a, b, shift, at[first:last], least_x, least_p, row, grams[number, block])
            block, first, start = block + 1, last, stop


@njit(nogil=True, cache=True)
def _rounded(pattern: Any, kind: Any) -> Any:
    """Return the fp32 pattern of a finite fp32 value rounded to a format; +0 for -0."""
    magnitude = np.uint32(pattern & np.uint32(_MAGNITUDE))
    sign = np.uint32(pattern ^ magnitude)
    if kind == BF16:
        magnitude = np.uint32(_bf16(magnitude) << np.uint32(16))
    elif kind == F16:
        if magnitude >= 0x477FF000:  # 65520, beyond which fp16 has no number
            magnitude = np.uint32(0x7F800000)
        elif magnitude >= 0x38800000:  # 2^-14, its smallest normal number
            magnitude = np.uint32(
                np.uint32(magnitude + np.uint32(0xFFF) + ((magnitude >> np.uint32(13)) & np.uint32(1))) & np.uint32(0xFFFFE000)
            )
        else:  # a multiple of 2^-24, as are the numbers near 1/2
            magnitude = np.float32((magnitude.view(np.float32) + np.float32(0.5)) - np.float32(0.5)).view(np.uint32)
    return np.uint32(magnitude | sign) if magnitude else np.uint32(0)


@njit(nogil=True, cache=True)
def count_casts(to: NDArray[np.uint32], source: NDArray[np.uint32], kind: Any, through: Any) -> Any:
    """Count the fp32 values that equal ``source`` rounded to the format ``through``, then to their own, ``kind``."""
    found = np.int64(0)
    for i in range(to.size):
        if through == F32 or to[i] & 0x1FFF == 0:  # more digits than fp16 and bf16 have
            found += _rounded(_rounded(source[i], through), kind) == _rounded(to[i], F32)
    return found


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract", "nsz"})
def multiply_pieces(
    x: NDArray[Any], p: NDArray[Any], shift: Any, piece: int, differ: NDArray[np.int64], products: NDArray[np.float64]
) -> None:  # fmt: skip
    """Set ``products``, (pieces, blocks), to the sums of x p of each block of regular pieces, by what `screen_pieces` found."""
    for number in range(differ.size):
        if differ[number] >= 0:
            start, block = number * piece, np.int64(0)
            end = min(start + piece, x.size)
            while start < end:
                stop, total = min(start + BLOCK, end), 0.0
                for i in range(start, stop):
                    v = np.float64(np.uint32(np.uint32(x[i]) << shift).view(np.float32))
                    w = np.float64(np.uint32(np.uint32(p[i]) << shift).view(np.float32))
                    total += v * w
                products[number, block] = total
                block, start = block + 1, stop
