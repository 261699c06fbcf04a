"""Decides which grid a part of a tensor is on, of which the other values have moved: the one that describes most in the fewest bits."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from analyzers.grids.code_books import BOOKS, CodeBook, Tile
from analyzers.grids.counts import EVIDENCE, PAIR_SIGNED, PAIR_SPANS, PASSED, TERNARY, ZEROS, GridCounts, Grids, matrix
from analyzers.grids.naming import FEW_TILES, MOST_BITS, PROOF_LOG10, chance_of, evidence_of, name_of
from analyzers.grids.shared_scales import larger_tiles
from analyzers.grids.tensor_grid import TensorGrid
from analyzers.numerics.grid_kernels import DULL, FAILED, POWERS, TESTED

# The least share of tiles that are proofs alone and of tiles that pass, to be told of a tensor that is not on a grid as a whole
_LEAST_SHARE = 0.05
# Fewest pairs of tiles that tell whether their scale is the same, and the least share of pairs of which it is
_FEWEST_PAIRS, _SHARED = 16, 0.75
# Least share of pairs with the most bits, without which more bits may have been missed
_OFTEN = 0.1
# Largest share of pairs of ternary weights that are not
_BY_CHANCE = 0.001
# Bits of a value on no grid, about as many as bf16 has. Grids are alike if they save at least so much of what the best one does.
_NATIVE_BITS, _ALIKE = 11.0, 0.9


class _Candidate(NamedTuple):
    """A grid of which the smallest tiles were counted, named by those that share their scales.

    book: its number; explained: smallest tiles that pass and tell; saved: bits that describing these as codes and scales saves.
    """

    grid: TensorGrid
    book: int
    explained: int
    saved: float


def partial_grid(grids: Grids, values: int, elements: int, shape: tuple[int, ...]) -> TensorGrid | None:
    """Return the grid that explains a part of a tensor: of those that explain about as much, the one with the fewest bits."""
    keys = [key for key in grids if key != ZEROS]
    smallest = [key for key in keys if not any(book == key[0] and key[1].holds(tile) for book, tile in keys if tile != key[1])]
    named = [_candidate(number, tile, grids[number, tile], values, elements, shape) for number, tile in sorted(smallest)]
    found = [each for each in named if each is not None]
    most = max((each.saved for each in found), default=0.0)
    best = min((each for each in found if each.saved >= _ALIKE * most), key=lambda each: (each.grid.bits, each.book), default=None)
    if best is None or most <= 0 or best.explained < _LEAST_SHARE * best.grid.groups:
        return None
    return best.grid


def _candidate(number: int, tile: Tile, found: GridCounts, values: int, elements: int, shape: tuple[int, ...]) -> _Candidate | None:
    book, counts, view = BOOKS[number], found.counts, (1, elements) if tile.flat else matrix(shape)
    tested, decades = int(counts[TESTED]), evidence_of(book, found)
    if decades < -PROOF_LOG10 or not found.single[EVIDENCE].any() or tile not in found.pairs:
        return None
    usual = int(found.single[EVIDENCE].argmax())
    powers = book.mantissa > 0 and 2 * int(counts[POWERS]) > tested - int(counts[FAILED])
    if powers:
        shared, sure = Tile(1, 32) if tile.rows == 1 else Tile(32, 1), book.bits == 4
    else:
        shared, sure = _shared(book, tile, found, view, usual)
    pairs = found.pairs[tile if powers else shared][:, : usual + 1].sum(1)
    if shared == tile:
        span = usual
        own = span + int(pairs[PAIR_SIGNED, : span + 1].sum() < (1 - 2 * FEW_TILES) * pairs[PAIR_SPANS, : span + 1].sum())
    else:
        span, own = (_most(pairs[each]) for each in (PAIR_SPANS, PAIR_SIGNED))
        sure &= book.bits > 0 or pairs[PAIR_SPANS, span] >= _OFTEN * pairs[PAIR_SPANS].sum()
    if span > MOST_BITS:
        return None
    sides = tile.sides(view)
    weights, whole = (int(np.prod(each.sides(view))) for each in (tile, shared))
    ternary = bool(pairs[TERNARY, 0] <= _BY_CHANCE * pairs[TERNARY].sum())
    name, bits, scale = name_of(book, whole, span, own, ternary, powers)
    by_bits = found.single[PASSED, : span + 1]
    explained = int(by_bits.sum())
    width = np.arange(span + 1) if not book.bits else book.bits
    saved = float((by_bits * (_NATIVE_BITS - width - scale / whole)).sum() + int(counts[DULL]) * _NATIVE_BITS) * weights
    # a span whose first tiles are off the grid is not counted
    groups = min(tested + -(-(values - found.values) * tested // max(1, found.values)), -(-view[0] // sides[0]) * -(-view[1] // sides[1]))
    grid = TensorGrid(
        format=name,
        group=shared.name,
        columns=tile.rows > 1 and tile.columns == 1,
        groups=groups,
        exceptions=max(groups - explained, 0),
        outliers=0,
        log10_chance=-decades,
        chance=chance_of(found),
        bits=bits + scale / whole,
        proven=False,
        least=not sure,
    )
    return _Candidate(grid, number, explained, saved)


def _most(by_bits: NDArray[np.int64]) -> int:
    """Return the bits that all but a few of the pairs have at most."""
    return int(np.searchsorted(np.cumsum(by_bits), (1 - FEW_TILES) * by_bits.sum()))


def _shared(book: CodeBook, tile: Tile, found: GridCounts, shape: tuple[int, int], usual: int) -> tuple[Tile, bool]:
    """Return the largest tile of which the tiles inside it share their scale, and whether larger ones are known not to.

    usual: bits that tiles have at most that are on the grid for sure.
    """
    best, apart, sure = tile, set[Tile](), True
    for larger, _ in larger_tiles(tile, book.tiles, shape):
        if any(larger.holds(each) for each in apart):
            continue
        pairs, same = found.pairs.get(larger, np.zeros((2, 1, 1)))[:2, : usual + 1, : usual + 1].sum((1, 2))
        if pairs < _FEWEST_PAIRS:
            sure = False
        elif same >= _SHARED * pairs:
            best, sure = larger, True
        else:
            apart.add(larger)
    return best, sure
