"""Decides from counts which grid a tensor is on: the one with the fewest bits among those that hold for all of it."""

from dataclasses import replace
from math import prod

from analyzers.grids.code_books import BOOKS, COLUMN, TENSOR
from analyzers.grids.counts import ZEROS, Grids, Key
from analyzers.grids.naming import describe_counts
from analyzers.grids.partial import partial_grid
from analyzers.grids.tensor_grid import TensorGrid
from analyzers.numerics.grid_kernels import TESTED

# Groups that a float must explain if its own evidence is not enough
_ENOUGH = 64


def grid_of(grids: Grids, values: int, elements: int, shape: tuple[int, ...]) -> TensorGrid | None:
    """Return the finest grid of a tensor of which ``values`` were read, or the one that explains a part if that is worth telling."""
    whole = proven_grid(grids, values, elements, shape)
    return whole[1] if whole else partial_grid(grids, values, elements, shape)


def proven_grid(grids: Grids, values: int, elements: int, shape: tuple[int, ...]) -> tuple[Key, TensorGrid] | None:
    """Return the finest grid that all values read are proven to be on, with its code book and tile."""

    def bits(each: tuple[Key, TensorGrid]) -> float:
        """Count the scales of columns with those of the pieces that were read, which are all that was tested."""
        (book, tile), counts = each[0], grids[each[0]]
        return each[1].bits + (BOOKS[book].scale_bits * int(counts.counts[TESTED]) / counts.values if tile == COLUMN else 0.0)

    whole, floats = [], []
    values -= grids[ZEROS].values if ZEROS in grids else 0
    for key, counts in sorted((item for item in grids.items() if item[0] != ZEROS), key=lambda item: item[0][0]):
        book, tile = BOOKS[key[0]], key[1]
        grid = describe_counts(book, tile, counts, elements, shape)
        if grid is None:
            continue
        complete = counts.values == values and (tile != TENSOR or counts.scales[0] <= counts.scales[1])
        if complete and grid.proven:
            whole.append((key, grid))
        elif complete and book.mantissa and not grid.exceptions and not grid.outliers and grid.groups >= _ENOUGH:
            floats.append((key, grid))
    if not whole:
        return None
    best = min(whole, key=bits)
    # what is proven to need a float is on the narrower one that holds for so many groups, whose range a wider one would exceed
    narrow = [
        (key, replace(grid, proven=True, log10_chance=best[1].log10_chance))
        for key, grid in floats
        if BOOKS[key[0]].mantissa == BOOKS[best[0][0]].mantissa
    ]
    return min([best, *narrow], key=bits)


def contenders(grids: Grids, shape: tuple[int, int]) -> set[Key]:
    """Return the grids that may be the best of a whole matrix, by some of its tiles; all of them if these do not tell."""
    told = {key: grid for key, counts in grids.items() if (grid := describe_counts(BOOKS[key[0]], key[1], counts, prod(shape), shape))}
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
    told = (describe_counts(BOOKS[number], key[1], counts, prod(shape), shape) for key, counts in grids.items() if key[0] == number)
    return bool(BOOKS[number].mantissa) and any(grid is not None and grid.proven for grid in told)
