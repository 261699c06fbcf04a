"""Counts how the values of a quantized tensor follow from those of its source, in compiled loops."""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

# Indices into the sums of `count_copy`: values with a grid; those within half a step of the source; those that rounding does not explain,
# also of scales; sums of |x - p|^2, of |nearest - p|^2, of p^2, and of the squares of errors by rounded scales; runs of values, and those
# in which x is not p.
VALUES, WITHIN, UNEXPLAINED, ERROR, NEAREST, SQUARE, COARSE, RUNS, LOST = range(9)
SUMS = 9

RUN = 64
# Rows of the sums of a column: of x^2, of x p, of p^2, of the squared errors that rounding leaves on average, and the number of values.
COLUMN_SUMS = 5
# Sums of `fit_rows`: squared errors, and those that rounding leaves, in units of x; both once the factors are undone, and of p^2; rows, and
# those that are not the source's.
SCALED_ERROR, SCALED_NEAREST, UNDONE_ERROR, UNDONE_NEAREST, FITTED_SQUARE, ROWS, ROWS_LOST = range(7)
FITTED = 7
_CORRELATED, _BEYOND = 0.25, 5.0  # least squared correlation of a row with its source, and least squared error in units of rounding
_ROUNDED = 1 + 2.0**-16  # of values computed in fp32


@njit(nogil=True, cache=True)
def _place(levels: NDArray[np.float64], uniform: Any, value: Any) -> Any:
    """Return the index of the level nearest to ``value``. uniform: whether levels are a unit apart."""
    last = levels.size - 1
    if uniform:
        return np.int64(min(max(np.rint(value - levels[0]), 0.0), np.float64(last)))
    low, high = np.int64(0), np.int64(last)
    while high - low > 1:
        middle = (low + high) >> 1
        if levels[middle] <= value:
            low = middle
        else:
            high = middle
    return high if value - levels[low] > levels[high] - value else low


@njit(nogil=True, cache=True, error_model="numpy")
def count_copy(
    x: NDArray[np.float32], p: NDArray[np.float32], scale: NDArray[np.float32], zero: NDArray[np.float32], bias: NDArray[np.float32],
    levels: NDArray[np.float64], uniform: bool, coarse: float, sums: NDArray[np.float64],
) -> None:  # fmt: skip
    """Add values (n,) of a quantized tensor, x = (level - zero) scale + bias, and of its source to ``sums`` (SUMS,).

    scale: NaN where a value has no grid; such values count in runs alone. levels: all of them, ascending; uniform: whether they are a unit
    apart; coarse: largest relative error by which scales and biases may have been rounded after they had been used. A run is lost if x and
    p correlate by less than a half and rounding does not explain a quarter of the differences.
    """
    last = levels.size - 1
    for start in range(0, x.size, RUN):
        xx = pp = xp = 0.0
        unexplained = counted = 0
        for i in range(start, min(start + RUN, x.size)):
            v, w, size = np.float64(x[i]), np.float64(p[i]), np.float64(scale[i])
            if not (abs(v) < np.inf and abs(w) < np.inf):
                continue
            counted += 1
            xx += v * v
            pp += w * w
            xp += v * w
            if not abs(size) < np.inf:
                unexplained += 1
                continue
            apart = abs(w - v)
            gap = abs(size)
            if not uniform:
                at = _place(levels, uniform, (v - bias[i]) / size + zero[i] if size else zero[i])
                at = min(at, last - 1) if (w > v) == (size > 0) else max(at - 1, 0)
                gap *= levels[at + 1] - levels[at]
            first, second = (levels[0] - zero[i]) * size + bias[i], (levels[last] - zero[i]) * size + bias[i]
            low, high = min(first, second), max(first, second)
            beyond = (w >= high and v >= high * (1 - 1e-6)) or (w <= low and v <= low * (1 - 1e-6))
            by_scale = coarse * (high - low + abs(bias[i]))
            wrong = apart > gap / 2 * _ROUNDED + by_scale and not (beyond and size != 0) and apart > 2.0**-16 * (size == 0)
            unexplained += wrong
            nearest = (levels[_place(levels, uniform, (w - bias[i]) / size + zero[i])] - zero[i]) * size + bias[i] if size else bias[i]
            sums[VALUES] += 1
            sums[WITHIN] += apart <= gap / 2 * _ROUNDED
            sums[UNEXPLAINED] += wrong
            sums[ERROR] += apart * apart
            sums[NEAREST] += (nearest - w) ** 2
            sums[SQUARE] += w * w
            sums[COARSE] += by_scale * by_scale
        if counted and xx + pp > 0:
            sums[RUNS] += 1
            sums[LOST] += xp <= np.sqrt(xx * pp) / 2 and 4 * unexplained > counted


@njit(nogil=True, cache=True)
def add_columns(x: NDArray[np.float32], p: NDArray[np.float32], scale: NDArray[np.float32], start: int, sums: NDArray[np.float64]) -> None:
    """Add the values (n,) from element ``start`` of a matrix on to the ``sums`` (COLUMN_SUMS, width) of its columns. scale: its steps."""
    width = sums.shape[1]
    column = start % width - 1
    for i in range(x.size):
        column = column + 1 if column + 1 < width else 0
        v, w, size = np.float64(x[i]), np.float64(p[i]), np.float64(scale[i])
        if abs(v) < np.inf and abs(w) < np.inf and abs(size) < np.inf:
            sums[0, column] += v * v
            sums[1, column] += v * w
            sums[2, column] += w * w
            sums[3, column] += size * size / 12
            sums[4, column] += 1


@njit(nogil=True, cache=True, error_model="numpy")
def fit_rows(
    x: NDArray[np.float32], p: NDArray[np.float32], scale: NDArray[np.float32], factors: NDArray[np.float64],
    rows: NDArray[np.float32], sums: NDArray[np.float64],
) -> None:  # fmt: skip
    """Fit x = row factor x factors x p to whole rows (n, columns), fill ``rows`` (n,), and add what is left to ``sums`` (FITTED,).

    factors: (columns,) those of a norm; 0 leaves a column out. Rounding is to a multiple of the step: no grid lacks 0.
    """
    for row in range(x.shape[0]):
        xx = xp = pp = steps = 0.0
        used = 0
        for column in range(x.shape[1]):
            v, w, step = np.float64(x[row, column]), factors[column] * np.float64(p[row, column]), np.float64(scale[row, column])
            if factors[column] and abs(v) < np.inf and abs(w) < np.inf and abs(step) < np.inf:
                xx += v * v
                xp += v * w
                pp += w * w
                steps += step * step / 12
                used += 1
        of_row = xp / pp if pp > 0 else 0.0
        rows[row] = of_row
        lost = np.float64(used) / max(1, used - 1)  # by the factor
        error = max(0.0, xx - of_row * xp)
        sums[SCALED_ERROR] += lost * error
        sums[SCALED_NEAREST] += steps
        sums[ROWS] += 1
        sums[ROWS_LOST] += xp * abs(xp) < _CORRELATED * xx * pp and error > _BEYOND * steps
        for column in range(x.shape[1]):
            v, w, step = np.float64(x[row, column]), np.float64(p[row, column]), np.float64(scale[row, column])
            factor = of_row * factors[column]
            if factors[column] and abs(v) < np.inf and abs(w) < np.inf and abs(step) < np.inf:
                sums[UNDONE_ERROR] += lost * (v / factor - w) ** 2 if factor else w * w
                rounded = np.rint(factor * w / step) * step if step else 0.0
                sums[UNDONE_NEAREST] += (rounded / factor - w) ** 2 if factor else w * w
                sums[FITTED_SQUARE] += w * w
