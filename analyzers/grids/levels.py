"""Finds the levels of values from the scales that were fitted to their tiles."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from analyzers.grids.code_books import CodeBook
from analyzers.numerics.conversions import values_of

_ROWS = 1 << 18  # values at a time
# Of a value, how far from the border between two levels either may be the nearest: quantizers divide by scales before they round these
_BORDER = 2.0**-8
# The largest error of a value that is rounded to a dtype, of its magnitude
_ROUNDING = {"BF16": 2.0**-8, "F16": 2.0**-11, "F32": 2.0**-24}
# Half of the largest step of the table of 8-bit codes to which bitsandbytes rounds scales, in units of the largest one
_SCALE_ROUNDED = 0.0072
# Largest relative error of an offset and of a scale that are stored in fp16, as in GGUF
_OFFSET_ROUNDED = 2.0**-11

Values = NDArray[np.float64]


@dataclass(slots=True)
class Fitted:
    """A piece of a matrix, and the lowest and highest scale and level of each of its tiles with the evidence, 0 where none fits.

    codes: (rows, columns) patterns; down, right: numbers of the tiles of each row and column; fits: (tiles, 5), row by row; first: number
    of the first tile along each axis of the matrix.
    """

    codes: NDArray[Any]
    down: NDArray[np.int64]
    right: NDArray[np.int64]
    fits: Values
    first: tuple[int, int]

    @classmethod
    def of(cls, codes: NDArray[Any], first: tuple[int, int], sides: tuple[int, int]) -> Self:
        """Number the tiles of a piece that begins at a row and column of the matrix. sides: of a tile."""
        down, right = (
            (start + np.arange(size)) // side - start // side for start, size, side in zip(first, codes.shape, sides, strict=True)
        )
        return cls(codes, down, right, np.zeros(((down[-1] + 1) * (right[-1] + 1), 5)), (first[0] // sides[0], first[1] // sides[1]))

    def scales(self, rows: slice) -> Values:
        """Return (2, rows, columns) the lowest and highest scale of each value."""
        both: Values = self.fits[self.down[rows, None] * (self.right[-1] + 1) + self.right, :2].transpose(2, 0, 1)
        return both

    @property
    def blocks(self) -> list[slice]:
        """Rows to look at, some at a time."""
        size = max(1, _ROWS // self.codes.shape[1])
        return [slice(row, row + size) for row in range(0, len(self.codes), size)]


def nearest_levels(fitted: Fitted, book: CodeBook, dtype: str, source: Values) -> NDArray[np.int64]:
    """Count values on levels, those of them whose level is the nearest one to ``source`` (rows, columns), and those that are at a tie.

    The outermost levels of a tile are the nearest ones up to one step beyond: quantizers clip. A value is at a tie if another level is
    nearer with the scales that explain the stored values, and its own with the one that the largest value of the source gives: the scale
    itself was rounded after the values were. On a grid with an offset it is at a tie if rounding offset and scale to fp16 explains it.
    """
    counts = np.zeros(3, np.int64)
    positive, negative = (side[np.isfinite(side)] for side in book.levels)
    levels = np.concatenate([-negative[::-1], np.zeros(int(book.zero)), positive])
    gaps = np.diff(levels, prepend=levels[0], append=levels[-1])
    gaps[0], gaps[-1] = gaps[1], gaps[-2]
    width = fitted.codes.shape[1]
    top, bottom, largest = (np.full(len(fitted.fits), each) for each in (-np.inf, np.inf, 0.0))
    for extremes in (True, False):
        for rows in fitted.blocks:
            low, high = fitted.scales(rows)
            x, p = values_of(fitted.codes[rows].ravel(), dtype).reshape(-1, width).astype(np.float64), source[rows]
            known = (high > 0) & np.isfinite(x) & np.isfinite(p)
            tile = (fitted.down[rows, None] * (fitted.right[-1] + 1) + fitted.right)[known]
            x, p, low, high = x[known], p[known], low[known], high[known]
            if extremes:
                np.maximum.at(top, tile, x)
                np.minimum.at(bottom, tile, x)
                np.maximum.at(largest, tile, np.abs(p))
                continue
            beyond, before = np.where(x == top[tile], 1.5, 0.5), np.where(x == bottom[tile], 1.5, 0.5)
            slack = np.abs(p) * _BORDER
            if book.offset:
                slack += np.maximum(np.abs(x), np.finfo(np.float32).tiny) * _ROUNDING[dtype]
                near = (p - x <= beyond * high + slack) & (x - p <= before * high + slack)
                moved = slack + (np.abs(top) + np.abs(bottom))[tile] * _OFFSET_ROUNDED
                again = (p - x <= beyond * high + moved) & (x - p <= before * high + moved)
            else:
                middle = (low + high) / 2
                signed = _sign(x / middle, levels, tile, len(top))
                number = _closest(x / middle * signed, levels)
                beyond, before = np.where(signed > 0, beyond, before), np.where(signed > 0, before, beyond)
                border = levels[number] - before * gaps[number], levels[number] + beyond * gaps[number + 1]
                near = _between(border, low, high, p * signed, slack)
                own = largest[tile] / np.abs(levels).max()
                rounding = _SCALE_ROUNDED * largest.max() / np.abs(levels).max()
                own = np.where(book.absmax & (np.abs(own - middle) <= rounding), own, middle)
                again = _between(border, np.minimum(low, own), np.maximum(high, own), p * signed, slack)
            counts += x.size, np.count_nonzero(near | again), np.count_nonzero(again & ~near)
    return counts


def _between(border: tuple[Values, Values], low: Values, high: Values, values: Values, slack: Values) -> NDArray[np.bool_]:
    """Return whether values are between two borders, in units of some scale from ``low`` to ``high``."""
    below, above = (np.minimum(border[0] * low, border[0] * high), np.maximum(border[1] * low, border[1] * high))
    inside: NDArray[np.bool_] = (values >= below - slack) & (values <= above + slack)
    return inside


def _closest(values: Values, levels: Values) -> NDArray[np.int64]:
    """Return the index of the closest of ascending levels."""
    return np.searchsorted((levels[1:] + levels[:-1]) / 2, values)


def _sign(values: Values, levels: Values, tile: NDArray[np.int64], tiles: int) -> Values:
    """Return the sign of the scale of each value's tile: that with which its values are closer to levels."""
    errors = [np.bincount(tile, np.abs(sign * values - levels[_closest(sign * values, levels)]), tiles) for sign in (1, -1)]
    return np.where(errors[0] <= errors[1], 1.0, -1.0)[tile]
