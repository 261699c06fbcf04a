"""Counts how the values of a quantized tensor follow from those of its source, in a compiled loop."""

import numpy as np
from numba import njit
from numpy.typing import NDArray

# Indices into the sums of `count_copy`: values with a grid; those within half a step of the source; those not explained by rounding, a
# coarse scale included; sums of |x - p|^2, of |nearest - p|^2 and of p^2 over them; runs of values, and those in which x is not p.
VALUES, WITHIN, UNEXPLAINED, ERROR, NEAREST, SQUARE, RUNS, LOST = range(8)
SUMS = 8

RUN = 64
_ROUNDED = 1 + 2.0**-16  # of values computed in fp32
# Part of the range of a grid by which codes may be wrong because scales were rounded after they had been used: to 8 or 10 digits.
_COARSE = 2.0**-9


@njit(nogil=True, cache=True)
def count_copy(
    x: NDArray[np.float32], p: NDArray[np.float32], nearest: NDArray[np.float32], below: NDArray[np.float32],
    above: NDArray[np.float32], low: NDArray[np.float32], high: NDArray[np.float32], sums: NDArray[np.float64],
) -> None:  # fmt: skip
    """Add values (n,) of a quantized tensor and of its source to ``sums`` (SUMS,).

    nearest: the value of the grid nearest to p; below, above: distances from x to its neighbours in the grid; low, high: ends of the grid.
    NaN where a value has no grid: such values count in runs alone. A run is lost if x and p have less than half of their squares in common
    and rounding explains less than half of the differences.
    """
    for start in range(0, x.size, RUN):
        stop = min(start + RUN, x.size)
        error = squares = 0.0
        unexplained = counted = 0
        for i in range(start, stop):
            v, w = np.float64(x[i]), np.float64(p[i])
            if not (abs(v) < np.inf and abs(w) < np.inf):
                continue
            counted += 1
            apart = abs(w - v)
            error += apart * apart
            squares += v * v + w * w
            gap = np.float64(above[i] if w > v else below[i])
            if not gap >= 0:
                unexplained += 1
                continue
            beyond = (w >= high[i] and v >= high[i]) or (w <= low[i] and v <= low[i])
            wrong = apart > gap / 2 * _ROUNDED + _COARSE * (high[i] - low[i]) and not beyond
            unexplained += wrong
            off = np.float64(nearest[i]) - w
            sums[VALUES] += 1
            sums[WITHIN] += apart <= gap / 2 * _ROUNDED
            sums[UNEXPLAINED] += wrong
            sums[ERROR] += apart * apart
            sums[NEAREST] += off * off
            sums[SQUARE] += w * w
        if counted and squares > 0:
            sums[RUNS] += 1
            sums[LOST] += 2 * error > squares and 2 * unexplained > counted
