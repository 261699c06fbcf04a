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


def nearest_levels(fitted: Fitted, book: CodeBook, dtype: str, source: Values) -> tuple[int, int]:
    """Count values on levels, and those of them whose level is the nearest one to ``source`` (rows, columns).

    The outermost levels of a tile are the nearest ones up to one step beyond: quantizers clip.
    """
    on = nearest = 0
    positive, negative = (side[np.isfinite(side)] for side in book.levels)
    levels = np.concatenate([-negative[::-1], np.zeros(int(book.zero)), positive])
    gaps = np.diff(levels, prepend=levels[0], append=levels[-1])
    gaps[0], gaps[-1] = gaps[1], gaps[-2]
    width = fitted.codes.shape[1]
    top, bottom = np.full(len(fitted.fits), -np.inf), np.full(len(fitted.fits), np.inf)
    for extremes in (True, False):
        for rows in fitted.blocks:
            low, high = fitted.scales(rows)
            x, p = values_of(fitted.codes[rows].ravel(), dtype).reshape(-1, width).astype(np.float64), source[rows]
            known = (high > 0) & np.isfinite(x) & np.isfinite(p)
            tile = (fitted.down[rows, None] * (fitted.right[-1] + 1) + fitted.right)[known]
            x, p, scale = x[known], p[known], (low + high)[known] / 2
            if extremes:
                np.maximum.at(top, tile, x)
                np.minimum.at(bottom, tile, x)
                continue
            if book.offset:
                above = below = scale
            else:
                signed = _sign(x / scale, levels, tile, len(top))
                number = _closest(x / scale * signed, levels)
                up, down = gaps[number + 1] * scale, gaps[number] * scale
                above, below = np.where(signed > 0, up, down), np.where(signed > 0, down, up)
            slack = np.abs(p) * _BORDER
            on += x.size
            above, below = above * np.where(x == top[tile], 1.5, 0.5), below * np.where(x == bottom[tile], 1.5, 0.5)
            nearest += int(np.count_nonzero((p - x <= above + slack) & (x - p <= below + slack)))
    return on, nearest


def _closest(values: Values, levels: Values) -> NDArray[np.int64]:
    """Return the index of the closest of ascending levels."""
    return np.searchsorted((levels[1:] + levels[:-1]) / 2, values)


def _sign(values: Values, levels: Values, tile: NDArray[np.int64], tiles: int) -> Values:
    """Return the sign of the scale of each value's tile: that with which its values are closer to levels."""
    errors = [np.bincount(tile, np.abs(sign * values - levels[_closest(sign * values, levels)]), tiles) for sign in (1, -1)]
    return np.where(errors[0] <= errors[1], 1.0, -1.0)[tile]
