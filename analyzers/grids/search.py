"""Searches a span of a tensor for grids: every format in a few tiles, which rejects native values, then all tiles on what these leave."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.checkpoints import Tensor
from analyzers.grids.formats import FORMATS, TENSOR, Format, Tile
from analyzers.numerics.grid_kernels import FAILED, TESTED, Counts, fit_tiles

# Tiles of a span that are tried first, and the evidence, in decades, that they must give unless all are on the grid
_FIRST = 8
PROMISING = 3.0
# Bits that a few tiles of a size must save for all of them to be tested, although larger ones are on a grid
_FEWER = 1.0
_FIELDS = {"F32": (23, 8), "F16": (10, 5), "BF16": (7, 8)}

Codes = NDArray[Any]
Shape = tuple[int, int]


@dataclass(slots=True)
class GridCounts:
    """Counts of the tiles of a format. values: number of values in them; scales: those common to all tiles, if each is a whole tensor."""

    values: int = 0
    counts: Counts = field(default_factory=Counts.zeros)
    scales: tuple[float, float] = (0.0, inf)

    def add(self, other: "GridCounts", times: float = 1.0) -> None:
        """Add the counts of other tiles, each of which consists of ``times`` tiles."""
        self.values += other.values
        for mine, theirs in zip(self.counts[:3], other.counts[:3], strict=True):
            mine += np.rint(theirs * times).astype(np.int64)
        self.counts.reaching[:] += other.counts.reaching
        np.maximum(self.counts.decades, other.counts.decades, out=self.counts.decades)
        self.scales = max(self.scales[0], other.scales[0]), min(self.scales[1], other.scales[1])

    @property
    def holds(self) -> bool:
        """Whether every tile is on the grid."""
        return bool(self.counts.tiles[TESTED] > 0 == self.counts.tiles[FAILED])

    @property
    def powers(self) -> bool:
        """Whether the scales are powers of two, as those of most tiles on the grid may be."""
        tested, failed, powers = self.counts.tiles.tolist()
        return bool(2 * powers > tested - failed)

    @property
    def decades(self) -> float:
        """-log10 of the chance that native values pass."""
        return float(self.counts.decades.sum())


Key = tuple[int, Tile]  # the number of the format
Grids = dict[Key, GridCounts]
ZEROS: Key = (-1, TENSOR)  # counts chunks of zeros, which every grid has


def together(parts: Sequence[Grids]) -> Grids:
    """Merge the counts of parts of a tensor."""
    whole: Grids = {}
    for part in parts:
        for key, counts in part.items():
            whole.setdefault(key, GridCounts()).add(counts)
    return whole


class GridSearch:
    """Searches one span of a tensor, chunk by chunk. found: of each chunk, the counts of the format and tile of the fewest bits that hold,
    or that hold for the most values.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.shape, self._dtype = matrix(tensor.shape), tensor.dtype
        self._candidates: dict[Key, float] | None = None if may_be_on_grid(tensor) else {}
        self.found: Grids = {}

    @property
    def done(self) -> bool:
        """True if nothing will be found."""
        return self._candidates == {}

    def add(self, codes: Codes, start: int) -> None:
        """Test a chunk: patterns from element ``start`` of the tensor on. The first one with other values than 0 decides what is tested."""
        if self.done or not codes.size:
            return
        codes = np.ascontiguousarray(codes)
        if not (codes[:64] << 1).any() and not (codes << 1).any():  # without the sign
            self.found.setdefault(ZEROS, GridCounts()).values += codes.size
            return
        if self._candidates is None:
            self._candidates = self._promising(codes, start)
        best: tuple[Key, GridCounts] | None = None
        fewest = inf
        for (number, tile), bits in self._candidates.items():
            if bits <= fewest - _FEWER:
                counts = self._test(FORMATS[number], tile, codes, start)
                needed = self._bits(FORMATS[number], tile, counts) if counts.holds else inf
                if best is None or needed < fewest or (fewest == inf and _values_on(counts) > _values_on(best[1])):
                    best, fewest = ((number, tile), counts), needed
        if best is not None:
            self.found.setdefault(best[0], GridCounts()).add(best[1])

    def _bits(self, form: Format, tile: Tile, counts: GridCounts) -> float:
        """Return the most bits that a value takes in the tiles counted, with its share of the scale."""
        levels = int(np.flatnonzero(counts.counts.spans).max()) if form.levels.integers else form.bits
        return levels + form.scale_bits * tile.number(self.shape) / prod(self.shape)

    def _promising(self, codes: Codes, start: int) -> dict[Key, float]:
        """Return the formats and tiles of which a few are on the grid, larger tiles of a format first, with the bits that these take."""
        rows = max(len(piece) for piece, _ in _pieces(codes, start, self.shape[1]))
        found, holding, telling = dict[Key, float](), set[Key](), set[Key]()
        for number, form in enumerate(FORMATS):
            refuted, promising = list[Tile](), dict[Key, float]()
            for tile in form.tiles:
                if tile.fits(self.shape, rows) and not any(map(tile.holds, refuted)):
                    counts = self._test(form, tile, codes, start, _FIRST)
                    if counts.counts.tiles[TESTED] == counts.counts.tiles[FAILED] > 0:
                        refuted.append(tile)
                    elif counts.holds or counts.decades >= PROMISING:
                        promising[number, tile] = self._bits(form, tile, counts)
                        holding |= {(number, tile)} if counts.holds else set()
                        telling |= {(number, tile)} if counts.decades >= PROMISING else set()
            found |= dict(reversed(promising.items()))
        best = telling & holding or telling or holding  # few values tell little, as in some blocks of ternary weights
        return {key: bits for key, bits in found.items() if key in best}

    def _test(self, form: Format, tile: Tile, codes: Codes, start: int, most: int = 0) -> GridCounts:
        """Test all tiles of a chunk, or about ``most``."""
        counts, shape = GridCounts(codes.size), (1, prod(self.shape)) if tile.flat else self.shape
        sides = tile.sides(shape)
        for piece, first in _pieces(codes, start, shape[1]):
            down, across = (-(-(at + size) // side) - at // side for at, size, side in zip(first, piece.shape, sides, strict=True))
            scales = np.zeros((down * across, 2))
            every = max(1, down * across // most) | 1 if most else 1  # an odd stride: not the same columns of each row
            fit_tiles(piece, first, sides, every, _FIELDS[self._dtype], form.levels, counts.counts, scales)
            if tile == TENSOR and scales[0, 1] > 0:
                # of the scales of a float, those that differ by a power of two explain the same values but for the smallest
                low, high = scales[0] * (2.0 ** -np.frexp(scales[0, 1])[1] if form.levels.floats else 1.0)
                counts.scales = max(counts.scales[0], float(low)), min(counts.scales[1], float(high))
        return counts


def _values_on(counts: GridCounts) -> float:
    """Return how many values are in tiles on the grid."""
    tested, failed = counts.counts.tiles[TESTED], counts.counts.tiles[FAILED]
    return float(counts.values * (tested - failed) / max(1, tested))


def matrix(shape: tuple[int, ...]) -> Shape:
    """Return rows and columns of a tensor: the last axis of matrices, stacked or not; all but the first of convolutions."""
    rows = prod(shape[:-1]) if len(shape) < 4 else shape[0]
    return rows, prod(shape) // max(rows, 1)


def may_be_on_grid(tensor: Tensor) -> bool:
    """Return whether a tensor is a matrix of floats large enough to tell."""
    return tensor.elements >= 32 and len(tensor.shape) > 1 < min(matrix(tensor.shape)) and tensor.dtype in _FIELDS and tensor.stored is None


def promising(grids: Grids) -> bool:
    """Return whether there is evidence for any of the grids, or integers with powers of two as scales, whose chance says nothing."""
    return any(counts.decades >= PROMISING or (counts.holds and counts.powers) for counts in grids.values())


def _pieces(codes: Codes, start: int, row: int) -> Iterator[tuple[Codes, Shape]]:
    """Split a chunk into matrices of whole rows or parts of one row; yields each with its first row and column."""
    at = 0
    while at < codes.size:
        column = (start + at) % row
        size = min(row - column, codes.size - at) if column else max((codes.size - at) // row * row, min(row, codes.size - at))
        yield codes[at : at + size].reshape(-1, min(size, row)), ((start + at) // row, column)
        at += size
