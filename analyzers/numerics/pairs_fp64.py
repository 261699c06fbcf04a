"""Counts pairs with one side stored in fp64: the definitions in numpy.

They hold for all dtypes; `pair_kernels` is faster for pairs whose sides are both exact in fp32.
"""

from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.numerics.bins import NARROW
from analyzers.numerics.pair_tables import PairCounts, PairTables, updates

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

_NAN = np.uint32(0x7FC00000)


def count_pairs(
    base: NDArray[Any], tuned: NDArray[Any], dtypes: tuple[str, str], eta: float, tables: PairTables | None,
    changed: NDArray[np.bool_] | None = None,
) -> PairCounts:  # fmt: skip
    """Count pairs of patterns ``base`` and ``tuned``, (n,) each, of the ``dtypes`` of the two; their magnitudes are added to ``tables``.

    changed: (n,), set to whether the bf16 values of each pair differ.
    """
    w, v = values_of(base, dtypes[0]), values_of(tuned, dtypes[1])
    finite = np.isfinite(w) & np.isfinite(v)
    differ = (w != v) & ~(np.isnan(w) & np.isnan(v))
    nonfinite = w.size - int(np.count_nonzero(finite))
    counts = PairCounts(w.size, nonfinite=nonfinite, base_square=sum_of_squares(w[finite] if nonfinite else w))
    if tables is not None:
        tables.add_others(int(np.count_nonzero(finite & ~differ)), nonfinite)
    at = np.flatnonzero(differ)
    if changed is not None:
        changed[:] = False
    if at.size == 0:
        return counts
    w, v, finite = w[at], v[at], finite[at]
    steps = np.abs(order(bf16_of(base[at], dtypes[0])) - order(bf16_of(tuned[at], dtypes[1])))
    counts.differ = at.size
    counts.changed = int(np.count_nonzero(steps))
    if changed is not None:
        changed[at] = steps != 0
    with np.errstate(over="ignore", invalid="ignore"):
        counts.probe = int(np.count_nonzero((np.abs(v - w) > eta * np.maximum(np.abs(w), np.abs(v))) | ~finite))
    w, v, steps = w[finite], v[finite], steps[finite]
    if w.size:
        update, _ = updates(w, v)
        counts.absolute_max = float(update.max())
        counts.update_square = sum_of_squares(update)
    if tables is not None:
        tables.add(w, v, steps, np.ones(w.size, dtype=np.int64))
    return counts


def sum_of_squares(x: Floats) -> Fraction:
    """Sum of x^2 over finite values in float64 arithmetic, without overflow or underflow."""
    largest = float(np.abs(x).max(initial=0.0))
    shift = int(np.frexp(largest)[1])
    return Fraction(float(np.square(np.ldexp(x, -shift)).sum())) * Fraction(4) ** shift


def values_of(codes: NDArray[Any], dtype: str) -> Floats:
    """(n,) the values of patterns of any float dtype."""
    if dtype == "F64":
        return codes.view(np.float64)
    with np.errstate(invalid="ignore"):  # signalling NaN
        return fp32_of(codes, dtype).view(np.float32).astype(np.float64)


def fp32_of(codes: NDArray[Any], dtype: str) -> NDArray[np.uint32]:
    """(n,) the fp32 patterns of the same values, for every dtype that fp32 holds exactly: all but F64."""
    if dtype == "F32":
        return codes
    if dtype == "BF16":
        return codes.astype(np.uint32) << np.uint32(16)
    patterns: NDArray[np.uint32] = fp32_table(dtype)[codes]
    return patterns


@cache
def fp32_table(dtype: str) -> NDArray[np.uint32]:
    """The fp32 pattern of every pattern of a narrow dtype."""
    return NARROW[dtype].decode().astype(np.float32).view(np.uint32)


def bf16_of(codes: NDArray[Any], dtype: str) -> NDArray[np.uint16]:
    """(n,) bf16 patterns of the values, rounded once to nearest even; every NaN is the same one."""
    codes = _rounded_to_odd(codes.view(np.float64)) if dtype == "F64" else fp32_of(codes, dtype)
    nan = codes & np.uint32(0x7FFFFFFF) > np.uint32(0x7F800000)
    even = codes + (np.uint32(0x7FFF) + ((codes >> np.uint32(16)) & np.uint32(1)))
    return (np.where(nan, _NAN, even) >> np.uint32(16)).astype(np.uint16)


def _rounded_to_odd(values: Floats) -> NDArray[np.uint32]:
    """fp32 patterns of float64 values: the neighbour toward zero, its last bit set where it is not the value itself.

    With at least 2 bits more than bf16, rounding these once more gives what rounding the values at once does.
    """
    with np.errstate(all="ignore"):
        narrow = values.astype(np.float32)
        wide = narrow.astype(np.float64)
    patterns = narrow.view(np.uint32).copy()
    inexact = (wide != values) & ~np.isnan(values)
    patterns[inexact & (np.abs(wide) > np.abs(values))] -= np.uint32(1)
    patterns[inexact] |= np.uint32(1)
    patterns[np.isnan(values)] = _NAN
    return patterns


def order(codes: NDArray[np.uint16]) -> NDArray[np.int64]:
    """(n,) index of bf16 patterns in the ordered values of bf16: zeros at 0, negative values below; infinities and NaN beyond."""
    magnitude = (codes & np.uint16(0x7FFF)).astype(np.int64)
    return np.where(codes >> np.uint16(15), -magnitude, magnitude)


def changed(base: NDArray[Any], tuned: NDArray[Any], dtypes: tuple[str, str]) -> Mask:
    """(n,) whether the bf16 values of pairs differ."""
    mask: Mask = order(bf16_of(base, dtypes[0])) != order(bf16_of(tuned, dtypes[1]))
    return mask
