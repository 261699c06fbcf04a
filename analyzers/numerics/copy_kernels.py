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
# Rows of the sums of a column: of x^2, of x p, of p^2, and of the squared errors that rounding leaves on average.
COLUMN_SUMS = 4
# Sums of `fit_channels`: squared errors, and those that rounding leaves, in units of x; both once the factors are undone, and of p^2.
SCALED_ERROR, SCALED_NEAREST, UNDONE_ERROR, UNDONE_NEAREST, FITTED_SQUARE = range(5)
FITTED = 5
LEAST_ROWS = 4  # of fewer rows, factors of channels explain most
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
            apart, upward = abs(w - v), (w > v) == (size > 0)
            at = _place(levels, uniform, (v - bias[i]) / size + zero[i] if size else zero[i])
            at = min(at, last - 1) if upward else max(at - 1, 0)
            gap = abs(size) * (levels[at + 1] - levels[at])
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


@njit(nogil=True, cache=True, error_model="numpy")
def fit_channels(x: NDArray[np.float32], p: NDArray[np.float32], scale: NDArray[np.float32], sums: NDArray[np.float64]) -> None:
    """Fit x = row factor x column factor x p to whole rows (rows, columns), and add what is left to ``sums`` (FITTED,)."""
    rows, columns = x.shape
    both, square = np.zeros(columns), np.zeros(columns)
    of_row, of_column = np.ones(rows), np.ones(columns)
    for turn in range(3):
        both[:] = 0
        square[:] = 0
        for row in range(rows):
            if turn:
                xp = pp = 0.0
                for column in range(columns):
                    w = of_column[column] * np.float64(p[row, column])
                    xp += w * np.float64(x[row, column])
                    pp += w * w
                of_row[row] = xp / pp if pp > 0 else 0.0
            for column in range(columns):
                w = of_row[row] * np.float64(p[row, column])
                both[column] += w * np.float64(x[row, column])
                square[column] += w * w
        for column in range(columns):
            of_column[column] = both[column] / square[column] if square[column] > 0 else 0.0
    lost = rows * columns / max(1.0, np.float64(rows * columns - rows - columns))  # by the factors
    for row in range(rows):
        for column in range(columns):
            v, w, step = np.float64(x[row, column]), np.float64(p[row, column]), np.float64(scale[row, column])
            factor = of_row[row] * of_column[column]
            sums[SCALED_ERROR] += lost * (v - factor * w) ** 2
            sums[SCALED_NEAREST] += step * step / 12
            sums[UNDONE_ERROR] += lost * (v / factor - w) ** 2 if factor else w * w
            sums[UNDONE_NEAREST] += (step / factor) ** 2 / 12 if factor else 0.0
            sums[FITTED_SQUARE] += w * w
