"""Tests every grid on the tiles of a span: on a few at first, which rejects native values, then on all."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from analyzers.checkpoints import Tensor
from analyzers.dtype_detection.grids.code_books import BOOKS, TENSOR, CodeBook, Tile
from analyzers.dtype_detection.grids.levels import Fitted, Values, finest_levels, nearest_levels
from analyzers.numerics.conversions import values_of
from analyzers.numerics.float_grid_kernels import count_finest
from analyzers.numerics.grid_kernels import ANCHORS, FAILED, FINEST, GRID_COUNTS, LARGEST, OUTLIERS, SIGNED, SPANS, TESTED, test_tiles

# Tiles of a span that are tested at first, and before all are; and the evidence, in decades beyond the first of each tile, without which
# no other is
_FIRST, _SAMPLED = 4, 16
_PROMISING = 3.0
# Values that show the resolution that is in use, and the fewest of them that are not 0
_LOOKED_AT, _TELLING = 4096, 64

# Significant bits of E4M3, the most of a float
_FLOAT_BITS = 4

# Neighbours are alike if they differ by less than this share of what values differ that are so many apart (mean of square roots).
_FAR, _SMOOTH = 17, 0.6

Key = tuple[int, Tile]  # the number of the code book
Codes = NDArray[Any]


class Stored(NamedTuple):
    """The resolution of values: dtype, bits of mantissa and exponent, significant bits in use, and the power of two that divides all."""

    dtype: str
    mantissa: int
    exponent: int
    bits: int
    step: float


@dataclass(slots=True)
class GridCounts:
    """Counts of one grid (`grid_kernels`), the evidence by pattern of the largest value, the scales common to all tiles, and the number of
    values in tiles that were counted."""

    values: int = 0
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(GRID_COUNTS, dtype=np.int64))
    decades: dict[int, float] = field(default_factory=dict)
    scales: tuple[float, float] = (0.0, np.inf)

    @property
    def finest(self) -> NDArray[np.int64]:
        """The counts of `count_finest`: (levels, 2)."""
        return self.counts[FINEST:].reshape(-1, 2)

    def add(self, other: "GridCounts") -> None:
        """Add the counts of other tiles."""
        self.values += other.values
        largest = max(self.counts[LARGEST], other.counts[LARGEST])
        self.counts += other.counts
        self.counts[LARGEST] = largest
        self.scales = max(self.scales[0], other.scales[0]), min(self.scales[1], other.scales[1])
        for anchor, decades in other.decades.items():
            self.decades[anchor] = max(decades, self.decades.get(anchor, 0.0))
        if len(self.decades) > ANCHORS:
            strongest = sorted(self.decades.items(), key=lambda item: (-item[1], item[0]))
            self.decades = dict(strongest[:ANCHORS])


Grids = dict[Key, GridCounts]


def together(parts: Sequence[Grids]) -> Grids:
    """Merge the counts of parts of a tensor."""
    whole: Grids = {}
    for part in parts:
        for key, counts in part.items():
            whole.setdefault(key, GridCounts()).add(counts)
    return whole


def matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return rows and columns of a tensor: the last axis of matrices, stacked or not; all but the first of convolutions."""
    rows = prod(shape[:-1]) if len(shape) < 4 else shape[0]
    return rows, prod(shape) // max(rows, 1)


class GridSearch:
    """Tests the grids on one span of a tensor, chunk by chunk. found: the counts of all that native values do not pass."""

    def __init__(self, tensor: Tensor) -> None:
        self._shape = matrix(tensor.shape)
        self._dtype = tensor.dtype
        self._tiles: dict[int, dict[Tile, int]] = {}  # that may share a scale, and the bits that a few of them take
        self.found: Grids = {}
        self._possible = tensor.dtype in _FIELDS and tensor.scale is None and len(tensor.shape) > 1 and min(self._shape) > 1

    @property
    def done(self) -> bool:
        """True if nothing will be found."""
        return not self._possible or (len(self._tiles) == len(BOOKS) and not any(self._tiles.values()))

    def add(self, codes: Codes, start: int) -> None:
        """Test a chunk: patterns from element ``start`` of the tensor on."""
        if self.done or not codes.size:
            return
        if not self._tiles and self._is_smooth(codes, start):
            self._tiles = {number: {} for number in range(len(BOOKS))}
            return
        codes, stored = self._resolved(codes)
        for book in range(len(BOOKS)):
            if book not in self._tiles:
                self._sample(book, codes, start, stored)
            self._count(book, codes, start, stored)

    def nearest(self, key: Key, codes: Codes, start: int, source: Values) -> tuple[int, int]:
        """Count values of a chunk on a grid, and those of them that are the levels nearest to ``source``."""
        book, at, counts = BOOKS[key[0]], 0, np.zeros(2, np.int64)
        codes, stored = self._resolved(codes)
        unused = np.zeros(GRID_COUNTS, np.int64), np.full(ANCHORS, -1, np.int64), np.zeros(ANCHORS)
        for fitted in self._fit(book, key[1], codes, start, stored, 0, *unused):
            end = at + fitted.codes.size
            counts += nearest_levels(fitted, book, stored.dtype, source[at:end].reshape(fitted.codes.shape))
            at = end
        return int(counts[0]), int(counts[1])

    def _resolved(self, codes: Codes) -> tuple[Codes, Stored]:
        """Narrow patterns to the dtype that values were rounded to last, and measure the resolution in use."""
        some = codes[:: codes.size // _LOOKED_AT | 1]
        if np.count_nonzero(some) < _TELLING:
            some = codes[np.flatnonzero(codes)[:_LOOKED_AT]]
        dtype = _narrowest(some, self._dtype)
        return narrowed(codes, self._dtype, dtype), _resolution(narrowed(some, self._dtype, dtype), dtype)

    def _is_smooth(self, codes: Codes, start: int) -> bool:
        """Return whether neighbours are alike, as in ramps and sinusoids: these have equal steps, and no independent values."""
        part, _ = max(_pieces(codes, start, self._shape[1]), key=lambda piece: piece[0].size)
        some = part[: 2 * _FAR]
        some = some[:, : _LOOKED_AT // len(some)]
        values = np.nan_to_num(values_of(np.ascontiguousarray(some).ravel(), self._dtype).reshape(some.shape), posinf=0.0, neginf=0.0)
        for across in (values, values.T, values.reshape(1, -1)) if values.shape[1] < 2 * _FAR else (values, values.T):
            if across.shape[1] >= 2 * _FAR:
                near, far = (float(np.sqrt(np.abs(across[:, lag:] - across[:, :-lag])).mean()) for lag in (1, _FAR))
                if near < _SMOOTH * far:
                    return True
        return False

    def _sample(self, number: int, codes: Codes, start: int, stored: Stored) -> None:
        """Decide from a few tiles which sizes of tiles may share a scale: first of the smallest, which hold if larger ones do."""
        book = BOOKS[number]
        # native values fail at once
        looks = {tile: self._test(book, tile, codes, start, stored, _FIRST) for tile in _smallest(number)}
        looks = {
            tile: look if look.counts[TESTED] == look.counts[FAILED] > 0 else self._test(book, tile, codes, start, stored, _SAMPLED)
            for tile, look in looks.items()
        }
        alive = [tile for tile, look in looks.items() if _promises(look) or not look.counts[FAILED]]  # few values: larger tiles may tell
        for tile in book.tiles:
            if tile not in looks and any(tile.holds(other) for other in alive):
                looks[tile] = self._test(book, tile, codes, start, stored, _SAMPLED)
        if not any(look.counts[TESTED] for look in looks.values()):
            return  # zeros: ask the next chunk
        self._tiles[number] = {
            tile: int(np.flatnonzero(looks[tile].counts[SPANS:SIGNED]).max(initial=0))
            for tile in book.tiles
            if tile in looks and (_promises(looks[tile]) or (book.powers and not looks[tile].counts[FAILED]))
        }

    def _count(self, number: int, codes: Codes, start: int, stored: Stored) -> None:
        """Test all tiles, largest first. What explains one explains the tiles inside it, which are tested only if they take fewer bits."""
        book = BOOKS[number]
        holding: list[tuple[Tile, int, GridCounts]] = []
        for tile, span in self._tiles.get(number, {}).items():
            larger = next((counts for other, bits, counts in holding if other.holds(tile) and (book.bits or bits <= span)), None)
            if larger is None:
                counts = self._test(book, tile, codes, start, stored)
                if counts.counts[TESTED] and not counts.counts[FAILED] and not counts.counts[OUTLIERS]:
                    holding.append((tile, span, counts))
            else:
                counts = GridCounts(codes.size, larger.counts.copy())
                rows, columns = tile.sides((1, self._shape[0] * self._shape[1]) if tile.flat else self._shape)
                counts.counts[TESTED] = codes.size // max(1, rows * columns)
            self.found.setdefault((number, tile), GridCounts()).add(counts)

    def _test(self, book: CodeBook, tile: Tile, codes: Codes, start: int, stored: Stored, most: int = 0) -> GridCounts:
        """Test about ``most`` tiles of a chunk (0: all)."""
        counts = GridCounts(codes.size)
        keys, decades = np.full(ANCHORS, -1, dtype=np.int64), np.zeros(ANCHORS)
        for fitted in self._fit(book, tile, codes, start, stored, most, counts.counts, keys, decades):
            if tile == TENSOR and fitted.fits[0, 1] > 0:
                # the lowest scale of a float that explains a piece may be any power of two times that of another
                low, high = fitted.fits[0] * (2.0 ** -np.frexp(fitted.fits[0, 1])[1] if book.mantissa else 1.0)
                counts.scales = max(counts.scales[0], float(low)), min(counts.scales[1], float(high))
            if book.mantissa and not most:
                count_finest(*finest_levels(fitted, book.mantissa, stored.dtype), fitted.codes.shape[1], counts.finest)
        counts.decades = {int(key): float(each) for key, each in zip(keys[keys >= 0], decades[keys >= 0], strict=True)}
        return counts

    def _fit(self, book: CodeBook, tile: Tile, codes: Codes, start: int, stored: Stored, most: int, *out: NDArray[Any]) -> Iterator[Fitted]:
        """Fit a scale to about ``most`` tiles of a chunk (0: all); adds to ``out``, as `test_tiles` does. Yields pieces of the chunk."""
        shape = (1, self._shape[0] * self._shape[1]) if tile.flat else self._shape
        sides = tile.sides(shape)
        plain = book.mantissa and not book.powers and stored.bits <= _FLOAT_BITS  # `count_finest` tells these from coarser grids
        bits, step = (stored.mantissa + 1, 0.0) if plain else (stored.bits, stored.step)
        form = np.array([stored.mantissa, stored.exponent, bits, book.powers, book.zero, book.offset, tile == TENSOR])
        for part, first in _pieces(codes, start, shape[1]):
            tiles = max(1, part.size // (min(sides[0], part.shape[0]) * min(sides[1], part.shape[1])))
            stride = max(1, tiles // most) | 1 if most else 1  # odd: not the same columns of each row
            fitted = Fitted.of(np.ascontiguousarray(part), first, sides)
            test_tiles(
                fitted.codes.reshape(-1), part.shape[1], np.array(first), np.array(shape), np.array(sides),
                0 in (tile.rows, tile.columns) or tile.rows > 1 < tile.columns, stride, form, step, book.levels,
                out[0], out[1], out[2], fitted.fits,
            )  # fmt: skip
            yield fitted


@cache
def _smallest(number: int) -> tuple[Tile, ...]:
    tiles = BOOKS[number].tiles
    return tuple(tile for tile in tiles if not any(tile.holds(other) for other in tiles if other is not tile))


def _promises(look: GridCounts) -> bool:
    return sum(max(0.0, decades - 1) for decades in look.decades.values()) >= _PROMISING


def _pieces(codes: Codes, start: int, row: int) -> Iterator[tuple[Codes, tuple[int, int]]]:
    """Split a chunk into matrices of whole rows or parts of one row; yields each with its first row and column."""
    at = 0
    while at < codes.size:
        column = (start + at) % row
        size = min(row - column, codes.size - at) if column else max((codes.size - at) // row * row, min(row, codes.size - at))
        yield codes[at : at + size].reshape(-1, min(size, row)), ((start + at) // row, column)
        at += size


def _narrowest(codes: Codes, dtype: str) -> str:
    """Return the dtype to which values were rounded last, of those that hold them all: their cells are wider than those of ``dtype``."""
    if dtype == "F32" and not np.any(codes & np.uint32(0xFFFF)):
        return "BF16"
    if dtype == "F32" and not np.any(codes & np.uint32(0x1FFF)):
        values = codes.view(np.float32)
        with np.errstate(over="ignore"):
            return "F16" if np.array_equal(values.astype(np.float16), values, equal_nan=True) else "F32"
    if dtype == "F16" and not np.any((codes & np.uint16(7) != 0) & (codes & np.uint16(0x7C00) != 0)):
        return "BF16"
    return dtype


def narrowed(codes: Codes, dtype: str, to: str) -> Codes:
    """Convert patterns to a narrower dtype; values that it does not hold become NaN."""
    if to == dtype:
        return codes
    values = codes.view(np.float32 if dtype == "F32" else np.float16).astype(np.float32)
    with np.errstate(over="ignore"):
        if to == "F16":
            narrow = values.astype(np.float16)
            return np.where(narrow == values, narrow.view(np.uint16), np.uint16(0x7E00))
    bits = values.view(np.uint32)
    return np.where(bits & 0xFFFF == 0, bits >> 16, 0x7FC0).astype(np.uint16)


_FIELDS = {"F32": (23, 8), "F16": (10, 5), "BF16": (7, 8)}


def _resolution(codes: Codes, dtype: str) -> Stored:
    """Measure the significant bits and the fixed-point step in use. A quarter of the values may have more, and one in a hundred a finer
    step: outliers must not make values of few bits look native."""
    mantissa, exponent = _FIELDS[dtype]
    magnitudes = np.unique(codes).astype(np.int64) & ((1 << (mantissa + exponent)) - 1)
    stored = magnitudes >> mantissa
    magnitudes, stored = (
        magnitudes[(magnitudes > 0) & (stored < (1 << exponent) - 1)],
        stored[(magnitudes > 0) & (stored < (1 << exponent) - 1)],
    )
    if not magnitudes.size:
        return Stored(dtype, mantissa, exponent, 1, 1.0)
    whole = (magnitudes & ((1 << mantissa) - 1)) + np.where(stored > 0, 1 << mantissa, 0)
    lowest = np.frexp((whole & -whole).astype(np.float64))[1] - 1
    bits = np.frexp(whole.astype(np.float64))[1] - lowest
    steps = np.maximum(stored, 1) - ((1 << (exponent - 1)) - 1) - mantissa + lowest
    return Stored(dtype, mantissa, exponent, int(np.quantile(bits, 0.75)), 2.0 ** int(np.quantile(steps, 0.01)))
