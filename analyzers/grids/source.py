"""Compares values on a grid with those that a quantizer may have rounded to it."""

from typing import Any

from numpy.typing import NDArray

from analyzers.checkpoints import Tensor
from analyzers.grids.claims import proven_grid
from analyzers.grids.counts import Key
from analyzers.grids.levels import Values
from analyzers.grids.search import GridSearch
from analyzers.grids.tensor_grid import TensorGrid


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

    def add(self, codes: NDArray[Any], start: int, source: Values) -> None:
        """Add a chunk: patterns from element ``start`` on, and values of the source. The first one decides which grid is compared."""
        self._search.add(codes, start)
        self._read += codes.size
        if self._key is None and (best := self._best) is not None:
            self._key = best[0]
        if self._key is not None:
            compared, nearest, ties = self._search.nearest(self._key, codes, start, source).tolist()
            self.compared, self.nearest, self.ties = self.compared + compared, self.nearest + nearest, self.ties + ties

    @property
    def grid(self) -> TensorGrid | None:
        """The grid that all values read are proven to be on, if it is the one that was compared."""
        best = self._best
        return best[1] if best is not None and best[0] == self._key else None

    @property
    def _best(self) -> tuple[Key, TensorGrid] | None:
        return proven_grid(self._search.found, self._read, self._tensor.elements, self._tensor.shape)
