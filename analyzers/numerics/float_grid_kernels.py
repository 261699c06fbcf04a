"""Measures whether values on the grid of a small float need it, or are on a coarser grid that it contains.

Integers of few bits and other 4-bit levels are on these grids too if their scales are powers of two, wherever their groups begin. But among
the integers of one group, none with all significant bits of the float is a multiple of a larger power of two than its neighbours are: that
would leave out integers in between. A float does leave these out, with the probability 2^-d for d powers of two. And where scales differ
between neighbours, integers have all these bits less often than not, since their smaller values have fewer.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from analyzers.numerics.pattern_kernels import exponent_of, power_in, power_of_two, value_of

Ints = NDArray[np.int64]

# Values on each side, along the row and along the column: in groups of 8 or more integers with one scale, one side is in the same group.
_NEAR = 4
NO_STEP = 1 << 14
# Levels of values with fewer significant bits, and of those that are below the normal range or not on the grid
FEWER, NONE = -1, -2
_LEVELS = 60  # with all significant bits, the most of a float; outliers are beyond


@njit(nogil=True, cache=True, error_model="numpy")
def finest_levels(
    codes: NDArray[Any], down: Ints, right: Ints, fits: NDArray[np.float64], mantissa: int, exponent: int, bits: int,
    steps: NDArray[np.int16], levels: NDArray[np.int8],
) -> None:  # fmt: skip
    """Set what `count_finest` needs (rows, columns): of patterns with ``mantissa`` and ``exponent`` bits, on a float with ``bits``.

    down, right, fits: numbers of the tiles of rows and columns, and their scales, as `Fitted` has them.
    """
    steps[:], levels[:] = NO_STEP, NONE
    for i in range(codes.shape[0]):
        for j in range(codes.shape[1]):
            tile = down[i] * (right[-1] + 1) + right[j]
            low, high = fits[tile, 0], fits[tile, 1]
            magnitude: Any = np.int64(codes[i, j]) & ((1 << (mantissa + exponent)) - 1)
            if low == 0 or magnitude == 0 or magnitude >> mantissa == (1 << exponent) - 1:
                continue
            power = power_in(low, high)
            scale = power if power > 0 else (low + high) / 2
            multiple = value_of(magnitude, mantissa, exponent) / scale
            spacing = power_of_two(max(exponent_of(multiple) - 1 - bits, 0))
            level = np.int64(max(np.rint(multiple / spacing), 1.0) * spacing)
            odd, twos = level, 0
            while odd & 1 == 0:
                odd, twos = odd >> 1, twos + 1
            steps[i, j] = twos + exponent_of(scale)
            number = ((twos << bits) + odd - (1 << bits)) >> 1 if odd >> bits == 1 else FEWER
            if level >> bits > 0 and number < _LEVELS:
                levels[i, j] = number


@njit(nogil=True, cache=True, error_model="numpy")
def count_finest(steps: NDArray[np.int16], levels: NDArray[np.int8], columns: int, out: NDArray[np.int64]) -> None:
    """Count values with all significant bits, and the powers of two by which no neighbours on one side are divisible.

    steps: (rows * columns,) exponents of the largest power of two that divides each value, `NO_STEP` for 0; levels: their numbers, or
    `FEWER`, or `NONE`. Of few rows, columns are not examined. Adds to out (levels, 2), in its last row `FEWER`.
    """
    rows = steps.size // columns
    for i in range(steps.size):
        if levels[i] < 0:
            out[-1, 0] += levels[i] == FEWER
            continue
        row, column, own, step = i // columns, i % columns, steps[i], -NO_STEP
        for stride, room in ((-1, column), (1, columns - 1 - column), (-columns, row), (columns, rows - 1 - row)):
            if abs(stride) == 1 or rows > 2 * _NEAR:
                least = own
                for near in range(1, min(_NEAR, room) + 1):
                    least = min(least, steps[i + near * stride])
                step = max(step, least)
        out[levels[i], 0] += 1
        out[levels[i], 1] += own - step
