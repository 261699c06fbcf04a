"""Compares values on a grid with those that a quantizer may have rounded to it."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.checkpoints import Tensor
from analyzers.grids.decide import proven_grid
from analyzers.grids.formats import FORMATS
from analyzers.grids.search import GridSearch, Key
from analyzers.grids.tensor_grid import TensorGrid
from analyzers.numerics.conversions import values_of
from analyzers.numerics.grid_kernels import Counts

# A scale may have been rounded after it rounded the values, to bf16; and clipped values are up to a step beyond the last level.
_SCALE_ROUNDED = 2.0**-8


class SourceOnGrid:
    """Compares a tensor, chunk by chunk from its start, with its source rounded on the grid of its values.

    compared: values on the grid; nearest: those that are the levels nearest to the source's values; ties: those of them that are so only
    with the scale before it was rounded.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._search = tensor, GridSearch(tensor)
        self._read = 0
        self._key: Key | None = None
        self.compared = self.nearest = self.ties = 0

    def add(self, codes: NDArray[Any], start: int, source: NDArray[Any]) -> None:
        """Add a chunk: patterns from element ``start`` on, and values of the source. The first one decides which grid is compared."""
        self._search.add(codes, start)
        self._read += codes.size
        if self._key is None and (best := self._best) is not None:
            self._key = best[0]
        if self._key is None:
            return
        form, tile, at = FORMATS[self._key[0]], self._key[1], 0
        positive, negative = (side[np.isfinite(side)] for side in form.levels.sides)
        levels = np.concatenate([-negative[::-1], [0.0], positive])
        for piece, first, scales in self._search.fit(form, tile, codes, start, Counts.zeros()):
            p, at = source[at : at + piece.size].reshape(piece.shape), at + piece.size
            sides = tile.sides((1, self._tensor.elements) if tile.flat else self._search.shape)
            down, right = ((np.arange(n) + begin) // side - begin // side for n, begin, side in zip(piece.shape, first, sides, strict=True))
            number = down[:, None] * (right[-1] + 1) + right
            x = values_of(piece.ravel(), self._tensor.dtype).reshape(piece.shape).astype(np.float64)
            on = (scales[number, 1] > 0) & np.isfinite(x) & np.isfinite(p)
            self._compare(x[on], p[on].astype(np.float64), number[on], scales, levels)

    def _compare(self, x: NDArray[Any], p: NDArray[Any], number: NDArray[Any], scales: NDArray[Any], levels: NDArray[Any]) -> None:
        """Count values whose source is between the middles to the neighbouring levels; beyond the last of a tile's, clipped, half more."""
        low, high = scales[number].T
        code = np.searchsorted((levels[1:] + levels[:-1]) / 2, 2 * x / (low + high))
        gaps = np.diff(levels, prepend=2 * levels[0] - levels[1], append=2 * levels[-1] - levels[-2])
        top, bottom = np.full(len(scales), -np.inf), np.full(len(scales), np.inf)
        np.maximum.at(top, number, x)
        np.minimum.at(bottom, number, x)
        above = levels[code] + gaps[code + 1] * np.where(x == top[number], 1.5, 0.5)
        below = levels[code] - gaps[code] * np.where(x == bottom[number], 1.5, 0.5)
        near = [
            (p <= np.maximum(above * low, above * high) + slack * np.abs(p))
            & (p >= np.minimum(below * low, below * high) - slack * np.abs(p))
            for slack in (2.0**-22, _SCALE_ROUNDED)
        ]
        exact, rounded = (int(np.count_nonzero(each)) for each in near)
        self.compared, self.nearest, self.ties = self.compared + x.size, self.nearest + rounded, self.ties + rounded - exact

    @property
    def grid(self) -> TensorGrid | None:
        """The grid that all values read are proven to be on, if it is the one that was compared."""
        best = self._best
        return best[1] if best is not None and best[0] == self._key else None

    @property
    def _best(self) -> tuple[Key, TensorGrid] | None:
        return proven_grid(self._search.found, self._read, self._tensor.shape)
