"""Tests every grid on the tiles of a span: on a few at first, which rejects native values, then on all."""

from collections.abc import Iterator
from functools import cache, lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from analyzers.checkpoints import Tensor
from analyzers.grids.claims import contenders, needed
from analyzers.grids.code_books import BOOKS, COLUMN, INTEGERS, TENSOR, CodeBook, Tile
from analyzers.grids.counts import ZEROS, GridCounts, Grids, Key, by_key, matrix
from analyzers.grids.levels import Fitted, Values, nearest_levels
from analyzers.grids.shared_scales import Larger, as_pairs, as_single, count_pairs, count_single, larger_tiles
from analyzers.numerics import grid_kernels
from analyzers.numerics.conversions import values_of
from analyzers.numerics.float_grid_kernels import count_finest, finest_levels
from analyzers.numerics.grid_kernels import ALL_STEPS, ANCHORS, FAILED, GRID_COUNTS, OUTLIERS, SIGNED, SPANS, TABLE, TESTED

# Tiles of a span that are tested at first, before more are, and before all are on the grids that these leave; and the evidence, in decades
# beyond the first of each tile, without which no other is
_FIRST, _SAMPLED, _TRIED = 4, 16, 128
_PROMISING = 3.0
# Values that show the resolution that is in use, and the fewest of them that are not 0
_LOOKED_AT, _TELLING = 4096, 64

# Fewest columns in which the smallest tiles are looked at
_FEW_COLUMNS = 64

# Significant bits of E4M3, the most of a float
_FLOAT_BITS = 4

# Neighbours are alike if they differ by less than this share of what values differ that are so many apart (mean of square roots).
_FAR, _SMOOTH = 17, 0.6

# Fewest rows of a chunk in which whole columns are tested: fewer values than the smallest groups have are on a grid by chance
_FEWEST_ROWS = 16

# Values of which the smallest tiles are compared where larger ones explain all
_COMPARED = 1 << 16

# The levels of all books, and the first and number of those of each
_LEVELS = np.concatenate([book.levels.ravel() for book in BOOKS])
_PLACES = [(sum(before.levels.size for before in BOOKS[:i]), book.levels.size) for i, book in enumerate(BOOKS)]

Codes = NDArray[Any]


class Stored(NamedTuple):
    """The resolution of values: dtype, bits of mantissa and exponent, significant bits in use, and the power of two that divides all.

    least: exponent of the step of fp16, to which bf16 values may have been rounded later.
    """

    dtype: str
    mantissa: int
    exponent: int
    bits: int
    step: float
    least: int = -1000

    def measured(self, codes: Codes) -> "Stored":
        """Return the resolution that values of this dtype use."""
        bits, step = _resolution(_some(codes), self.mantissa, self.exponent)
        return self._replace(bits=bits, step=step)


class GridSearch:
    """Tests the grids on one span of a tensor, chunk by chunk. found: the counts of all that native values do not pass."""

    def __init__(self, tensor: Tensor) -> None:
        self._shape = matrix(tensor.shape)
        self._dtype = tensor.dtype
        self._undecided = {number for number, book in enumerate(BOOKS) if any(tile.fits(self._shape) for tile in book.tiles)}
        self._tiles: dict[int, dict[Tile, int]] = {}  # of the others: that may share a scale, and the bits that a few of them take
        self._weak: set[Key] = set()  # hold for some tiles that tell too little: counted, but no evidence
        self.found: Grids = {}
        self._possible = may_be_on_grid(tensor)

    @property
    def done(self) -> bool:
        """True if nothing will be found."""
        return not self._possible or not (self._undecided or any(self._tiles.values()))

    def add(self, codes: Codes, start: int) -> None:
        """Test a chunk: patterns from element ``start`` of the tensor on."""
        if self.done or not codes.size:
            return
        codes = np.ascontiguousarray(codes)
        some = codes[:: codes.size // _LOOKED_AT | 1]
        if not (some << 1).any() and not (codes << 1).any():  # without the sign
            self.found.setdefault(ZEROS, GridCounts()).values += codes.size
            return
        stored, tiles = self._stored(codes), self._testable(codes, start)
        looks = self._look([(number, tile) for number in tiles for tile in _smallest(tiles[number])], codes, start, stored, _FIRST, True)
        if all(look.refuted for look in looks.values()):  # native values
            self._decide({number: {} for number in tiles})
        elif not self._tiles and self._is_smooth(codes, start):
            self._decide({number: {} for number in self._undecided})
        if self.done:
            return
        codes = narrowed(codes, self._dtype, stored.dtype)
        stored = stored.measured(codes)
        if not self._undecided.isdisjoint(tiles):
            self._sample(tiles, looks, codes, start, stored)
        own = [(BOOKS[number].bits or max(tiles.values()), number) for number, tiles in self._tiles.items() if tiles]
        finest = [number for _, number in sorted(own)]
        for i, number in enumerate(finest):
            self._count(BOOKS[number], number, self._tiles[number], codes, start, stored)
            if needed(self.found, number, self._shape):
                self._tiles |= {other: {} for other in finest[i + 1 :]}
                break
        self._keep(self.found)

    def _keep(self, grids: Grids) -> None:
        """Leave out those of some grids that cannot be the best, by their counts."""
        others = grids.keys() - contenders({key: counts for key, counts in grids.items() if key != ZEROS}, self._shape)
        for number, tiles in self._tiles.items():
            self._tiles[number] = {tile: span for tile, span in tiles.items() if (number, tile) not in others}

    def nearest(self, key: Key, codes: Codes, start: int, source: Values) -> NDArray[np.int64]:
        """Count values of a chunk on a grid, and compare them with ``source``, as `nearest_levels` does."""
        book, at, counts = BOOKS[key[0]], 0, np.zeros(3, np.int64)
        stored = self._stored(codes)
        codes = narrowed(codes, self._dtype, stored.dtype)
        unused = np.zeros(GRID_COUNTS, np.int64), np.full(ANCHORS, -1, np.int64), np.zeros(ANCHORS)
        for fitted in self._fit(book, key[1], codes, start, stored, *unused):
            end = at + fitted.codes.size
            counts += nearest_levels(fitted, book, stored.dtype, source[at:end].reshape(fitted.codes.shape))
            at = end
        return counts

    def _stored(self, codes: Codes) -> Stored:
        """Return the dtype that values were rounded to last."""
        dtype = _narrowest(_some(codes), self._dtype)
        mantissa, exponent = _FIELDS[dtype]
        return Stored(dtype, mantissa, exponent, mantissa + 1, 0.0, -24 if self._dtype == "F16" else -1000)

    def _is_smooth(self, codes: Codes, start: int) -> bool:
        """Return whether neighbours are alike, as in ramps and sinusoids: these have equal steps, and no independent values."""
        part, _ = max(_pieces(codes, start, self._shape[1]), key=lambda piece: piece[0].size)
        some = part[: 2 * _FAR]
        some = some[:, : _LOOKED_AT // len(some)]
        values: NDArray[Any] = values_of(np.ascontiguousarray(some).ravel(), self._dtype).reshape(some.shape)
        values = np.nan_to_num(values, posinf=0.0, neginf=0.0)
        for across in (values, values.T, values.reshape(1, -1)) if values.shape[1] < 2 * _FAR else (values, values.T):
            if across.shape[1] >= 2 * _FAR:
                near, far = (float(np.sqrt(np.abs(across[:, lag:] - across[:, :-lag])).mean()) for lag in (1, _FAR))
                if near < _SMOOTH * far:
                    return True
        return False

    def _sample(self, tiles: dict[int, tuple[Tile, ...]], looks: "Looks", codes: Codes, start: int, stored: Stored) -> None:
        """Decide from a few of some tiles which sizes may share a scale. looks: at the smallest, which hold if larger ones do."""
        looks |= (again := self._look([key for key, look in looks.items() if not look.refuted], codes, start, stored, _SAMPLED))
        # few values: larger tiles may tell; and where one grid promises much, others may explain more
        some = any(look.promises and not look.refuted for look in again.values())
        if some:
            again |= self._look([key for key in looks if key not in again], codes, start, stored, _SAMPLED)
            looks |= again
        alive = [key for key, look in again.items() if not look.counts[FAILED] or look.promises or (some and not look.refuted)]
        larger = [(number, tile) for number, small in alive for tile in tiles[number] if tile != small and tile.holds(small)]
        looks |= self._look(list(dict.fromkeys(larger)), codes, start, stored, _SAMPLED)
        for number in tiles:
            own = {tile: looks[number, tile] for tile in tiles[number] if (number, tile) in looks}
            if any(look.counts[TESTED] for look in own.values()):  # otherwise zeros: ask the next chunk
                passed = {
                    tile: int(np.flatnonzero(look.counts[SPANS:SIGNED]).max(initial=0))
                    for tile, look in own.items()
                    if not look.counts[FAILED] or (not look.refuted and (some or look.promises))
                }
                self._decide({number: passed})
                self._weak |= {(number, tile) for tile, look in own.items() if not (look.promises or BOOKS[number].powers)}
        alive = [(number, tile) for number in tiles for tile in self._tiles.get(number, ())]
        if len(alive) > 1:
            looks = self._look(alive, codes, start, stored, _TRIED)
            self._weak -= {key for key, look in looks.items() if look.promises}
            evidence = {key: {} if key in self._weak else by_key(look.keys, look.decades) for key, look in looks.items()}
            self._keep({key: GridCounts(codes.size, look.counts, evidence[key]) for key, look in looks.items()})

    def _decide(self, tiles: dict[int, dict[Tile, int]]) -> None:
        self._tiles |= tiles
        self._undecided -= tiles.keys()

    def _testable(self, codes: Codes, start: int) -> dict[int, tuple[Tile, ...]]:
        """Return the tiles of undecided code books that a chunk can have: without columns and blocks of which it has too few rows."""
        rows, columns = max((part.shape for part, _ in _pieces(codes, start, self._shape[1])), key=prod)
        testable = _tiles_within(self._shape, (rows, columns), codes.size)
        return {number: testable[number] for number in sorted(self._undecided) if testable[number]}

    def _look(self, keys: list[Key], codes: Codes, start: int, stored: Stored, most: int, wide: bool = False) -> "Looks":
        """Test about ``most`` tiles of a chunk on each of some grids. wide: patterns are as read, of which a few columns are narrowed."""
        counts = np.zeros((len(keys), GRID_COUNTS), np.int64)
        anchors, decades = np.full((len(keys), ANCHORS), -1, np.int64), np.zeros((len(keys), ANCHORS))
        for flat in {tile.flat for _, tile in keys}:
            shape = self._viewed(flat)
            for part, first in _pieces(codes, start, shape[1]):
                if wide and stored.dtype != self._dtype:
                    few = part[:, : max(_FEW_COLUMNS, _LOOKED_AT // len(part))]
                    part = narrowed(few.ravel(), self._dtype, stored.dtype).reshape(few.shape)
                tests, steps = _tests(tuple(keys), flat, shape, part.shape, stored, most)
                grid_kernels.test_forms(part.reshape(-1), part.shape[1], np.array(first), tests, steps, _LEVELS, counts, anchors, decades)
        return {key: _Look(counts[i], anchors[i], decades[i]) for i, key in enumerate(keys)}

    def _viewed(self, flat: bool) -> tuple[int, int]:
        return (1, self._shape[0] * self._shape[1]) if flat else self._shape

    def _count(self, book: CodeBook, number: int, tiles: dict[Tile, int], codes: Codes, start: int, stored: Stored) -> None:
        """Test all tiles, largest first. What explains one explains the tiles inside it, which are tested only if they take fewer bits."""
        holding: list[tuple[Tile, int, GridCounts]] = []
        tested: dict[Tile, GridCounts] = {}
        smallest = _smallest(tuple(tiles))
        for tile, span in tiles.items():
            larger = next((counts for other, bits, counts in holding if other.holds(tile) and (book.bits or bits <= span)), None)
            if larger is None:
                counts = tested[tile] = self._test(book, tile, codes, start, stored, tile in smallest)
                if counts.counts[TESTED] and not counts.counts[FAILED] and not counts.counts[OUTLIERS]:
                    holding.append((tile, span, counts))
            else:
                counts = GridCounts(codes.size, larger.counts.copy())
                rows, columns = tile.sides(self._viewed(tile.flat))
                counts.counts[TESTED] = codes.size // max(1, rows * columns)
            if tile in smallest and tile not in tested:
                counts.single = as_single(counts.counts)
                counts.pairs = self._test(book, tile, codes[:_COMPARED], start, stored, True).pairs
                counts.pairs |= {other: as_pairs(each.counts) for other, each in tested.items() if other.holds(tile)}
            if (number, tile) in self._weak:
                counts.decades = {}
            self.found.setdefault((number, tile), GridCounts()).add(counts)

    def _test(self, book: CodeBook, tile: Tile, codes: Codes, start: int, stored: Stored, smallest: bool) -> GridCounts:
        """Test all tiles of a chunk. Of the ``smallest``, count those that share their scales."""
        counts, keys, decades = GridCounts(codes.size), np.full(ANCHORS, -1, np.int64), np.zeros(ANCHORS)
        pieces = []
        for fitted in self._fit(book, tile, codes, start, stored, counts.counts, keys, decades):
            if smallest:
                pieces.append(fitted)
            if tile == TENSOR and fitted.fits[0, 1] > 0:
                # the lowest scale of a float that explains a piece may be any power of two times that of another
                low, high = fitted.fits[0, :2] * (2.0 ** -np.frexp(fitted.fits[0, 1])[1] if book.mantissa else 1.0)
                counts.scales = max(counts.scales[0], float(low)), min(counts.scales[1], float(high))
            if book.mantissa:
                steps, levels = np.empty(fitted.codes.shape, np.int16), np.empty(fitted.codes.shape, np.int8)
                finest_levels(
                    fitted.codes, fitted.down, fitted.right, fitted.fits, stored.mantissa, stored.exponent, book.mantissa, steps, levels
                )
                count_finest(steps.ravel(), levels.ravel(), fitted.codes.shape[1], counts.finest)
        counts.decades = by_key(keys, decades)
        if pieces:
            shape = self._viewed(tile.flat)
            counts.single = np.sum([count_single(fitted, book) for fitted in pieces], axis=0)
            for larger in [Larger(tile, 0, 0), *larger_tiles(tile, book, shape)]:
                counts.pairs[larger.tile] = np.sum([count_pairs(fitted, book, tile, larger, shape) for fitted in pieces], axis=0)
        return counts

    def _fit(self, book: CodeBook, tile: Tile, codes: Codes, start: int, stored: Stored, *out: NDArray[Any]) -> Iterator[Fitted]:
        """Fit a scale to all tiles of a chunk; adds to ``out``, as `test_tiles` does. Yields pieces of the chunk."""
        shape = self._viewed(tile.flat)
        sides = tile.sides(shape)
        form, step = _form(book, tile, stored)
        for part, first in _pieces(codes, start, shape[1]):
            fitted = Fitted.of(part, first, sides)
            grid_kernels.test_tiles(
                part.reshape(-1), part.shape[1], np.array(first), np.array(shape), np.array(sides), tile.cut, 1, np.array(form), step,
                book.levels, out[0], out[1], out[2], fitted.fits,
            )  # fmt: skip
            yield fitted


def may_be_on_grid(tensor: Tensor) -> bool:
    """Return whether a tensor is a matrix of floats large enough to tell."""
    # Of fewer values than `_is_smooth` needs, a ramp would be taken for integers.
    enough = tensor.elements >= 2 * _FAR and len(tensor.shape) > 1 and min(matrix(tensor.shape)) > 1
    return enough and tensor.dtype in _FIELDS and tensor.scale is None


class _Look(NamedTuple):
    """What a few tiles show: what `test_tiles` has set."""

    counts: NDArray[np.int64]
    keys: NDArray[np.int64]
    decades: NDArray[np.float64]

    @property
    def refuted(self) -> bool:
        return bool(self.counts[TESTED] == self.counts[FAILED] > 0)

    @property
    def promises(self) -> bool:
        return float(np.maximum(self.decades - 1, 0.0).sum()) >= _PROMISING


Looks = dict[Key, _Look]


def _form(book: CodeBook, tile: Tile, stored: Stored) -> tuple[tuple[int, ...], float]:
    """Return what `test_tiles` needs to know of values and a grid: form and own_step."""
    plain = book.mantissa and not book.powers and stored.bits <= _FLOAT_BITS  # `count_finest` tells these from coarser grids
    bits, step = (stored.mantissa + 1, 0.0) if plain else (stored.bits, stored.step)
    levels = ALL_STEPS if book is INTEGERS else book.mantissa or TABLE
    return (stored.mantissa, stored.exponent, bits, book.powers, book.zero, book.offset, tile == TENSOR, levels, stored.least), step


@lru_cache(1 << 8)
def _tests(
    keys: tuple[Key, ...], flat: bool, shape: tuple[int, int], part: tuple[int, int], stored: Stored, most: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the tests of `test_forms` on about ``most`` tiles of each of the grids that are ``flat`` or not, with their steps."""
    rows, steps = [], []
    for i, (number, tile) in enumerate(keys):
        if tile.flat == flat:
            sides = tile.sides(shape)
            tiles = max(1, prod(part) // (min(sides[0], part[0]) * min(sides[1], part[1])))
            form, step = _form(BOOKS[number], tile, stored)
            # an odd stride: not the same columns of each row
            rows.append((i, *_PLACES[number], *shape, *sides, tile.cut, max(1, tiles // most) | 1, *form))
            steps.append(step)
    return np.array(rows, np.int64), np.array(steps)


@lru_cache(1 << 8)
def _tiles_within(shape: tuple[int, int], part: tuple[int, int], size: int) -> tuple[tuple[Tile, ...], ...]:
    """Return the tiles of each code book that a chunk of ``size`` elements with one large ``part`` of a matrix can have."""

    def within(tile: Tile) -> bool:
        if tile == COLUMN:
            return part[0] >= min(_FEWEST_ROWS, shape[0])
        return size >= tile.columns if tile.flat else tile.cut or (part[0] >= tile.rows and part[1] >= tile.columns)

    return tuple(tuple(tile for tile in book.tiles if tile.fits(shape) and within(tile)) for book in BOOKS)


@cache
def _smallest(tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
    return tuple(tile for tile in tiles if not any(tile.holds(other) for other in tiles if other is not tile))


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


def _some(codes: Codes) -> Codes:
    some = codes[:: codes.size // _LOOKED_AT | 1]
    return some if np.count_nonzero(some) >= _TELLING else codes[np.flatnonzero(codes)[:_LOOKED_AT]]


def _resolution(codes: Codes, mantissa: int, exponent: int) -> tuple[int, float]:
    """Measure the significant bits and the fixed-point step in use. A quarter of the values may have more, and one in a hundred a finer
    step: outliers must not make values of few bits look native."""
    magnitudes = np.unique(codes).astype(np.int64) & ((1 << (mantissa + exponent)) - 1)
    stored = magnitudes >> mantissa
    magnitudes, stored = (
        magnitudes[(magnitudes > 0) & (stored < (1 << exponent) - 1)],
        stored[(magnitudes > 0) & (stored < (1 << exponent) - 1)],
    )
    if not magnitudes.size:
        return 1, 1.0
    whole = (magnitudes & ((1 << mantissa) - 1)) + np.where(stored > 0, 1 << mantissa, 0)
    lowest = np.frexp((whole & -whole).astype(np.float64))[1] - 1
    bits = np.frexp(whole.astype(np.float64))[1] - lowest
    steps = np.maximum(stored, 1) - ((1 << (exponent - 1)) - 1) - mantissa + lowest
    return _quantile(bits, 0.75), 2.0 ** _quantile(steps, 0.01)


def _quantile(values: NDArray[Any], share: float) -> int:
    """Interpolate as np.quantile, which takes longer than all else of a small tensor."""
    at = (values.size - 1) * share
    low, high = np.sort(values)[[int(at), min(int(at) + 1, values.size - 1)]].tolist()
    return int(low + (high - low) * (at - int(at)))
