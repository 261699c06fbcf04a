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
LARGEST = 0x49742400  # pattern of 1e6: no weight is this large
SMOOTH, FEWEST_ROWS = 0.2, 4

# Columns of the sums of a piece: number of values, of those equal in bf16 and as stored, of zeros in X only and in P only; sum of (x p)^2;
# sums of the squared binades of X and of P; numbers equal as cast: directly, through fp16, through bf16. NUMBER is 0 if it is not regular.
NUMBER, EQUAL, EXACT, ZERO_X, ZERO_P, PRODUCT, BINADES_X, BINADES_P, CAST, CAST_F16, CAST_BF16 = range(11)
SUMS = 11

# Formats to which values are rounded
ANY, F32, F16, BF16 = range(4)

_MAGNITUDE = 0x7FFFFFFF
_EXPONENT = 0x7F800000
_NORMAL = 0x00800000
_SIGNS = 1024  # values of a piece whose signs are compared with those of the next row
_FEWEST_COLUMNS = 16


@njit(nogil=True, cache=True)
def _survey(x: NDArray[Any], p: NDArray[Any], shift: int) -> tuple[int, Any, Any, int, int]:
    """Return how many patterns differ, a bound on the largest and the smallest |pattern|, and the sums of the biased exponents."""
    differ, bound, least = np.uint32(0), np.uint32(0), np.uint32(_MAGNITUDE)
    of_x, of_p = np.uint32(0), np.uint32(0)
    for i in range(x.size):
        a, b = np.uint32(x[i]) << np.uint32(shift), np.uint32(p[i]) << np.uint32(shift)
        v, w = np.uint32(a & _MAGNITUDE), np.uint32(b & _MAGNITUDE)
        differ += np.uint32(a != b)
        bound |= np.uint32(v | w)
        least = min(least, min(v, w))
        of_x += np.uint32(v >> np.uint32(23))
        of_p += np.uint32(w >> np.uint32(23))
    return np.int64(differ), bound, least, np.int64(of_x), np.int64(of_p)


@njit(nogil=True, cache=True)
def _extremes(x: NDArray[Any], shift: int) -> tuple[Any, int, int]:
    """Return the largest |pattern|, and the numbers of zeros and of subnormals."""
    largest, zeros, tiny = np.uint32(0), 0, 0
    for i in range(x.size):
        v = np.uint32(np.uint32(np.uint32(x[i]) << np.uint32(shift)) & _MAGNITUDE)
        largest = max(largest, v)
        zeros += v == 0
        tiny += 0 < v < _NORMAL
    return largest, zeros, tiny


@njit(nogil=True, cache=True)
def _has_constant_block(x: NDArray[Any], shift: int) -> bool:
    """Return whether a block holds one value; +0 = -0."""
    for start in range(0, x.size, BLOCK):
        part = x[start : start + BLOCK]
        first = np.uint32(np.uint32(part[0]) << np.uint32(shift)).view(np.float32)
        other = False
        for i in range(part.size):
            if np.uint32(np.uint32(part[i]) << np.uint32(shift)).view(np.float32) != first:
                other = True
                break
        if not other:
            return True
    return False


@njit(nogil=True, cache=True)
def _may_be_smooth(
    x: NDArray[Any], shift: int, width: int, table: NDArray[np.float64], mask: NDArray[np.float64], means: NDArray[np.float64]
) -> bool:  # fmt: skip
    """Return whether rows of ``width`` may resemble the next by more than `SMOOTH`, to judge from some columns.

    Compares signs as `analyzers.parents.count.is_smooth` does. table, mask, means: buffers.
    """
    rows = x.size // width
    if rows < FEWEST_ROWS:
        return False
    columns = min(width, max(_FEWEST_COLUMNS, _SIGNS // rows))
    step = max(1, (width // columns - 1) | 1)
    row_of, whole = 0.0, 0.0
    for c in range(columns):
        means[c] = 0.0
    for r in range(rows):
        row_of, low, high = 0.0, np.inf, -np.inf
        for c in range(columns):
            v = np.float64(np.uint32(np.uint32(x[r * width + c * step]) << np.uint32(shift)).view(np.float32))
            table[r * columns + c] = v
            row_of += v
            low, high = min(low, v), max(high, v)
            means[c] += v
        whole += row_of
        for c in range(columns):
            at = r * columns + c
            mask[at] = 1.0 if table[at] != 0 and high > low else 0.0
            table[at] -= row_of / columns
    whole /= rows * columns
    for r in range(rows):
        for c in range(columns):
            at = r * columns + c
            v = table[at] + whole - means[c] / rows
            table[at] = mask[at] * (1.0 if v > 0 else -1.0 if v < 0 else 0.0)
    counts = means[columns:]
    for c in range(columns):
        means[c], counts[c] = 0.0, 0.0
    whole, every = 0.0, 0.0
    for r in range(rows):
        row_of, number = 0.0, 0.0
        for c in range(columns):
            at = r * columns + c
            row_of += table[at]
            number += mask[at]
            means[c] += table[at]
            counts[c] += mask[at]
        whole += row_of
        every += number
        for c in range(columns):
            table[r * columns + c] -= row_of / max(number, 1.0)
    product, square = 0.0, 0.0
    for r in range(rows):
        for c in range(columns):
            at = r * columns + c
            table[at] = (table[at] + whole / max(every, 1.0) - means[c] / max(counts[c], 1.0)) * mask[at]
            if r:
                product += table[at] * table[at - columns]
                square += table[at] * table[at]
    return product > SMOOTH / 2 * square


@njit(nogil=True, cache=True)
def _differing(x: NDArray[Any], p: NDArray[Any], at: NDArray[np.int32]) -> int:
    """Set ``at`` to the indices of patterns that differ; return how many do."""
    found = 0
    for i in range(x.size):  # branch-free: a branch would often be mispredicted
        at[found] = i
        found += x[i] != p[i]
    return found


@njit(nogil=True, cache=True)
def _is_far(x: NDArray[Any], p: NDArray[Any], shift: int, at: NDArray[np.int32], limit: float) -> bool:
    """Return whether X and P differ by more than ``limit`` at one of the indices."""
    far = False
    for i in range(at.size):
        v = np.float64(np.uint32(np.uint32(x[at[i]]) << np.uint32(shift)).view(np.float32))
        w = np.float64(np.uint32(np.uint32(p[at[i]]) << np.uint32(shift)).view(np.float32))
        far |= abs(w - v) > limit
    return far


@njit(nogil=True, cache=True)
def _screened(
    x: NDArray[Any], p: NDArray[Any], shift: int, width: int, at: NDArray[np.int32], table: NDArray[np.float64],
    mask: NDArray[np.float64], means: NDArray[np.float64],
) -> int:  # fmt: skip
    """Return how many patterns of a piece differ, and set ``at`` to their indices; -1 if the piece is not regular."""
    differ, bound, least, of_x, of_p = _survey(x, p, shift)
    zeros_x, zeros_p = 0, 0
    if bound >= LARGEST or least < _NORMAL:
        largest_x, zeros_x, tiny_x = _extremes(x, shift)
        largest_p, zeros_p, tiny_p = _extremes(p, shift)
        if max(largest_x, largest_p) >= LARGEST or tiny_x or tiny_p:
            return -1
    if _has_constant_block(x, shift) or _has_constant_block(p, shift):
        return -1
    if differ:
        # The typical value of a side is the geometric mean of those that are not 0, in whole binades; exponents as those of frexp.
        nonzero_x, nonzero_p = x.size - zeros_x, x.size - zeros_p
        typical_x, typical_p = (of_x - 126 * nonzero_x) / max(nonzero_x, 1), (of_p - 126 * nonzero_p) / max(nonzero_p, 1)
        if _is_far(x, p, shift, at[: _differing(x, p, at)], FAR * 2.0 ** max(typical_x, typical_p)):
            return -1
    # Few differences cannot make rows of P smooth if those of X are far from it.
    if _may_be_smooth(x, shift, width, table, mask, means) or (
        _SIGNS * differ > 16 * x.size and _may_be_smooth(p, shift, width, table, mask, means)
    ):
        return -1
    return differ


@njit(nogil=True, cache=True)
def mark_irregular(x: NDArray[Any], p: NDArray[Any], shift: int, piece: int, width: int, irregular: NDArray[np.bool_]) -> None:
    """Set ``irregular``, (pieces,), where a piece is not regular."""
    at, table, mask, means = np.empty(piece + 1, np.int32), np.empty(piece), np.empty(piece), np.empty(2 * piece)
    for number in range(irregular.size):
        part = slice(number * piece, min((number + 1) * piece, x.size))
        if not irregular[number] and _screened(x[part], p[part], shift, width, at, table, mask, means) < 0:
            irregular[number] = True


# Float64 sums may be reassociated, so that vector additions are possible.
@njit(nogil=True, cache=True, fastmath={"reassoc", "contract", "nsz"})
def _add_equal(x: NDArray[Any], p: NDArray[Any], shift: int, least: Any) -> tuple[float, float, float]:
    """Return the sums of x^2, of x^4, and of the squared binades of x, where X and P are equal. least: the smallest binade."""
    squares, fourth, binades = 0.0, 0.0, 0.0
    for i in range(x.size):
        a, b = np.uint32(x[i]) << np.uint32(shift), np.uint32(p[i]) << np.uint32(shift)
        same = np.uint32(a) if a == b else np.uint32(0)
        v = np.float64(np.uint32(same).view(np.float32))
        binade = np.uint32(same & _EXPONENT).view(np.float32)
        binade = least if 0 < binade < least else binade
        squares += v * v
        fourth += (v * v) * (v * v)
        binades += np.float64(binade) * np.float64(binade)
    return squares, fourth, binades


@njit(nogil=True, cache=True)
def _bf16(pattern: Any) -> Any:
    """Return the bf16 pattern of a finite fp32 pattern, rounded to nearest even."""
    return np.uint32(pattern + np.uint32(0x7FFF) + ((pattern >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
def _add_differing(
    x: NDArray[Any], p: NDArray[Any], shift: int, at: NDArray[np.int32], least_x: Any, least_p: Any, sums: NDArray[np.float64],
    grams: NDArray[np.float64],
) -> None:  # fmt: skip
    """Add the pairs at the indices ``at`` of a block, whose patterns differ. grams: (3,)."""
    equal, same, zero_x, zero_p = 0, 0, 0, 0
    xx, xp, pp, products, binades_x, binades_p = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for i in range(at.size):
        a, b = np.uint32(np.uint32(x[at[i]]) << np.uint32(shift)), np.uint32(np.uint32(p[at[i]]) << np.uint32(shift))
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
        binade_x, binade_p = (least_x if 0 < binade_x < least_x else binade_x), (least_p if 0 < binade_p < least_p else binade_p)
        binades_x += np.float64(binade_x) * np.float64(binade_x)
        binades_p += np.float64(binade_p) * np.float64(binade_p)
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
def _count_differing(x: NDArray[Any], p: NDArray[Any], shift: int, at: NDArray[np.int32], histograms: NDArray[np.int64]) -> None:
    """Add the bf16 patterns at the indices ``at`` where they differ."""
    of_x, of_p = histograms[1], histograms[2]
    for i in range(at.size):
        a, b = np.uint32(np.uint32(x[at[i]]) << np.uint32(shift)), np.uint32(np.uint32(p[at[i]]) << np.uint32(shift))
        v, w = np.uint64(_bf16(a)), np.uint64(_bf16(b))  # unsigned: numba would add a check for negative indices
        of_x[v] += v != w
        of_p[w] += v != w


@njit(nogil=True, cache=True)
def _count_patterns(x: NDArray[Any], shift: int, counts: NDArray[np.int64]) -> None:
    for i in range(x.size):
        pattern = x[i] if shift else _bf16(np.uint32(x[i]))
        counts[np.uint64(pattern)] += 1  # unsigned: numba would add a check for negative indices


@njit(nogil=True, cache=True)
def _rounded(pattern: Any, kind: int) -> Any:
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
def _count_cast(to: NDArray[Any], source: NDArray[Any], shift: int, kind: int, through: int) -> int:
    """Count the values that equal ``source`` rounded to the format ``through``, then to their own, ``kind``."""
    found = 0
    for i in range(to.size):
        a, b = np.uint32(np.uint32(to[i]) << np.uint32(shift)), np.uint32(np.uint32(source[i]) << np.uint32(shift))
        if through == F32 or a & 0x1FFF == 0:  # more digits than fp16 and bf16 have
            found += _rounded(_rounded(b, through), kind) == _rounded(a, F32)
    return found


@njit(nogil=True, cache=True)
def count_pieces(
    x: NDArray[Any], p: NDArray[Any], shift: int, piece: int, width: int, kind_x: int, kind_p: int, irregular: NDArray[np.bool_],
    histograms: NDArray[np.int64], sums: NDArray[np.float64], grams: NDArray[np.float64],
) -> None:  # fmt: skip
    """Count the regular pieces of X and P, (n,) patterns in rows of ``width``, cut into pieces of ``piece`` values.

    irregular: (pieces,) which not to count. Added to: ``histograms`` (3, 65536), the bf16 patterns of X, and those of X and of P where the
    two differ in bf16; ``sums`` (pieces, SUMS); ``grams`` (pieces, blocks, 3), sums of x^2, of x p and of p^2. The sums of pieces that are
    not regular stay 0.
    """
    at, table, mask, means = np.empty(piece + 1, np.int32), np.empty(piece), np.empty(piece), np.empty(2 * piece)
    least_x, least_p = np.float32(2.0**-14 if kind_x == F16 else 2.0**-126), np.float32(2.0**-14 if kind_p == F16 else 2.0**-126)
    for number in range(irregular.size):
        part = slice(number * piece, min((number + 1) * piece, x.size))
        a, b, row = x[part], p[part], sums[number]
        differ = -1 if irregular[number] else _screened(a, b, shift, width, at, table, mask, means)
        if differ < 0:
            continue
        row[NUMBER] = a.size
        row[EQUAL] = row[EXACT] = a.size - differ
        first = 0
        for block, start in enumerate(range(0, a.size, BLOCK)):
            block_of = a[start : start + BLOCK], b[start : start + BLOCK]
            squares, fourth, binades = _add_equal(*block_of, shift, least_x)
            row[PRODUCT] += fourth
            row[BINADES_X] += binades
            row[BINADES_P] += binades if least_p == least_x else _add_equal(*block_of, shift, least_p)[2]
            for column in range(3):
                grams[number, block, column] += squares
            last = first
            while last < differ and at[last] < start + BLOCK:
                last += 1
            _add_differing(a, b, shift, at[first:last], least_x, least_p, row, grams[number, block])
            first = last
        _count_differing(a, b, shift, at[:differ], histograms)
        _count_patterns(a, shift, histograms[0])
        if row[EXACT] == a.size:
            row[CAST : CAST_BF16 + 1] = a.size
        elif (kind_x == BF16 and kind_p == BF16) or kind_x == ANY or kind_p == ANY:
            row[CAST] = row[EXACT]
        elif 2 * row[EQUAL] >= a.size:
            for way, through in enumerate((F32, F16, BF16)):
                row[CAST + way] = max(_count_cast(a, b, shift, kind_x, through), _count_cast(b, a, shift, kind_p, through))


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract", "nsz"})
def _product(x: NDArray[Any], p: NDArray[Any], shift: int) -> float:
    total = 0.0
    for i in range(x.size):
        v = np.float64(np.uint32(np.uint32(x[i]) << np.uint32(shift)).view(np.float32))
        w = np.float64(np.uint32(np.uint32(p[i]) << np.uint32(shift)).view(np.float32))
        total += v * w
    return total


@njit(nogil=True, cache=True)
def multiply_pieces(
    x: NDArray[Any], p: NDArray[Any], shift: int, piece: int, irregular: NDArray[np.bool_], products: NDArray[np.float64]
) -> None:
    """Set ``products``, (pieces, blocks), to the sums of x p of each block of regular pieces."""
    for number in range(irregular.size):
        if not irregular[number]:
            part = slice(number * piece, min((number + 1) * piece, x.size))
            a, b = x[part], p[part]
            for block, start in enumerate(range(0, a.size, BLOCK)):
                products[number, block] = _product(a[start : start + BLOCK], b[start : start + BLOCK], shift)
