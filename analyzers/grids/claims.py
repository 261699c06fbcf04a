"""Decides from counts which grid a tensor is on: the one with the fewest bits among those that hold for all of it."""

from dataclasses import replace
from math import log2, log10, prod

import numpy as np
from numpy.typing import NDArray

from analyzers.grids.code_books import BOOKS, COLUMN, TENSOR, CodeBook, Tile
from analyzers.grids.counts import ZEROS, GridCounts, Grids, Key, matrix
from analyzers.grids.tensor_grid import TensorGrid
from analyzers.numerics.grid_kernels import DULL, FAILED, LARGEST, OUTLIERS, POWERS, SIGNED, SPANS, STRONG, TESTED

# A proof needs odds below 10^-9 although so many grids are tried.
PROOF_LOG10 = -9.0
_TRIALS = log10(sum(len(book.tiles) for book in BOOKS))
_MOST_BITS = 8
_FEW_TILES = 0.01
# Groups that a float must explain if its own evidence is not enough
_ENOUGH = 64
# Values on the same level that count
_SAME = 128
# The share of values of a float's normal range with all its significant bits, by the bits of its mantissa: about half of smoothly
# distributed ones (fewer beyond 2 of E2M1's coarse steps); of integers whose scales are any powers of two a seventh to two fifths, and
# more where many are clipped
_FINEST_SHARE = {1: (0.25, 1.0), 2: (0.45, 0.6), 3: (0.45, 0.6)}
# The least share of groups that are proofs alone and of groups that pass, to be told of a tensor that is not on a grid as a whole
_FOSSIL_SHARE = 0.05


def grid_of(grids: Grids, values: int, elements: int, shape: tuple[int, ...]) -> TensorGrid | None:
    """Return the finest grid of a tensor of which ``values`` were read, or the one that explains most groups if that is worth telling."""
    best = best_grid(grids, values, elements, shape)
    return best[1] if best else None


def best_grid(grids: Grids, values: int, elements: int, shape: tuple[int, ...]) -> tuple[Key, TensorGrid] | None:
    """Return the same with its code book and tile."""

    def bits(each: tuple[Key, TensorGrid]) -> float:
        """Count the scales of columns with those of the pieces that were read, which are all that was tested."""
        (book, tile), counts = each[0], grids[each[0]]
        return each[1].bits + (BOOKS[book].scale_bits * int(counts.counts[TESTED]) / counts.values if tile == COLUMN else 0.0)

    whole, parts, floats = [], [], []
    values -= grids[ZEROS].values if ZEROS in grids else 0
    for key, counts in sorted((item for item in grids.items() if item[0] != ZEROS), key=lambda item: item[0][0]):
        book, tile = BOOKS[key[0]], key[1]
        grid = _describe(book, tile, counts, elements, shape)
        if grid is None:
            continue
        complete = counts.values == values and (tile != TENSOR or counts.scales[0] <= counts.scales[1])
        if complete and grid.proven:
            whole.append((key, grid))
        elif complete and book.mantissa and not grid.exceptions and not grid.outliers and grid.groups >= _ENOUGH:
            floats.append((key, grid))
        elif not book.mantissa and grid.log10_chance <= PROOF_LOG10 and counts.counts[STRONG] >= _FOSSIL_SHARE * counts.counts[TESTED]:
            # a span whose first tiles are off the grid is not counted
            off = -(-(values - counts.values) * grid.groups // max(1, counts.values))
            parts.append((key, replace(grid, groups=grid.groups + off, exceptions=grid.exceptions + off, proven=False)))
    if whole:
        best = min(whole, key=bits)
        # what is proven to need a float is on the narrower one that holds for so many groups, whose range a wider one would exceed
        narrow = [
            (key, replace(grid, proven=True, log10_chance=best[1].log10_chance))
            for key, grid in floats
            if BOOKS[key[0]].mantissa == BOOKS[best[0][0]].mantissa
        ]
        return min([best, *narrow], key=bits)
    return min(parts, key=lambda each: _rank(each[1]), default=None)


def contenders(grids: Grids, shape: tuple[int, int]) -> set[Key]:
    """Return the grids that may be the best of a whole matrix, by some of its tiles; all of them if these do not tell."""
    told = {key: grid for key, counts in grids.items() if (grid := _describe(BOOKS[key[0]], key[1], counts, prod(shape), shape))}
    holding = {key: grid for key, grid in told.items() if not grid.exceptions and not grid.outliers}
    proven = [(grid.bits, *key) for key, grid in holding.items() if grid.proven]
    if not proven:
        # A float is proven only by counting all values. Of the other grids, only those that hold can be finer, so the rest need no counts.
        return set(holding) if any(BOOKS[number].mantissa for number, _ in holding) else set(grids)
    bits, best, tile = min(proven)
    if tile.cut:  # tested in parts, which prove nothing about the whole
        return set(holding)
    finer = {key for key, grid in holding.items() if grid.bits < bits or (grid.bits == bits and key[0] != best)}
    # integers may take more bits elsewhere, where tiles of other sizes, or without an offset, are finer
    same = {key for key in holding if key[0] <= best and BOOKS[key[0]].bits == BOOKS[best].bits}
    return finer | {key for key in same if key[1].holds(tile) or tile.holds(key[1])}


def needed(grids: Grids, number: int, shape: tuple[int, int]) -> bool:
    """Return whether counted values are proven to need the float with the code book ``number``."""
    told = (_describe(BOOKS[number], key[1], counts, prod(shape), shape) for key, counts in grids.items() if key[0] == number)
    return bool(BOOKS[number].mantissa) and any(grid is not None and grid.proven for grid in told)


def _rank(grid: TensorGrid) -> tuple[float, int, float]:
    return round(grid.exceptions / grid.groups, 2), grid.exceptions + grid.outliers, grid.bits


def _bits_of(tiles: NDArray[np.int64]) -> tuple[int, int]:
    """Return the bits of integers, from numbers of tiles by bits, and the number of tiles left out: those of a few in which an outlier is
    explained by chance, by at least two bits more.
    """
    most = int(np.flatnonzero(tiles).max(initial=0))
    usual = int(np.searchsorted(np.cumsum(tiles), (1 - _FEW_TILES) * tiles.sum()))
    return (usual, int(tiles[usual + 1 :].sum())) if most > usual + 1 else (most, 0)


def _describe(book: CodeBook, tile: Tile, found: GridCounts, elements: int, shape: tuple[int, ...]) -> TensorGrid | None:
    counts = found.counts
    tested, failed, outliers = int(counts[TESTED]), int(counts[FAILED]), int(counts[OUTLIERS])
    if tested == failed:
        return None
    name, bits, scale = book.name, float(book.bits), float(book.scale_bits)
    rows, columns = map(min, tile.sides(view := (1, elements) if tile.flat else matrix(shape)), view)
    # a tile that was read in parts is one group, and off the grid if any part is
    groups = min(tested, -(-view[0] // rows) * -(-view[1] // columns))
    if book.name in ("int", "offset"):
        span, others = _bits_of(counts[SPANS:SIGNED])
        signed, _ = _bits_of(counts[SIGNED:LARGEST])
        failed += others
        if span > _MOST_BITS:
            return None
        bits = float(span)
        if book.name == "offset":
            name = f"int{span}_offset"
        elif counts[LARGEST] == 1:
            name, bits = "ternary", log2(3)
        elif signed > span:
            name, scale = f"int{span}_zp", scale + span
        else:
            name = f"int{span}"
    elif book.powers:
        name = "mxfp4" if name == "fp4_mx" else f"mx{name}"
    elif book.mantissa and 2 * counts[POWERS] > tested:  # the coarsest scale of a group of few levels may be another
        mx = rows * columns % 32 == 0 if book.bits == 4 else rows * columns == 32
        name = ("mxfp4" if book.bits == 4 else f"mx{name}") if mx else name
    elif book.name == "fp4_e2m1" and rows * columns == 16:
        name = "nvfp4"
    decades = sum(found.decades.values()) - _TRIALS
    if book.mantissa:
        (*used, fewer), (*twos, _) = found.finest.T
        needed = float(sum(powers * min(1.0, _SAME / number) for number, powers in zip(used, twos, strict=True) if number)) * log10(2)
        least, most = _FINEST_SHARE[book.mantissa]
        decades = min(decades, needed) if least <= sum(used) / max(1, sum(used) + fewer) <= most else 0.0
    return TensorGrid(
        format=name,
        group=tile.name,
        columns=tile.rows > 1 and tile.columns == 1,
        groups=groups,
        exceptions=min(failed, groups),
        outliers=outliers,
        log10_chance=min(0.0, -decades),
        chance=10 ** -(sum(found.decades.values()) / max(1, len(found.decades))),
        bits=bits + scale / (rows * columns),
        proven=not failed and not outliers and decades >= -PROOF_LOG10 and tested >= int(counts[DULL]) / 1000,
    )
