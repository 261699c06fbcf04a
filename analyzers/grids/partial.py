"""Decides which grid a part of a tensor is on, of which the other values have moved: the one that describes most in the fewest bits."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from analyzers.grids.code_books import BOOKS, INTEGERS, CodeBook, Tile
from analyzers.grids.counts import EVIDENCE, PAIR_SIGNED, PAIR_SPANS, PASSED, PLAIN, SAME_SCALE, ZEROS, GridCounts, Grids, Key, matrix
from analyzers.grids.naming import FEW_TILES, MOST_BITS, PROOF_LOG10, chance_of, evidence_of, name_of
from analyzers.grids.shared_scales import larger_tiles
from analyzers.grids.tensor_grid import TensorGrid
from analyzers.numerics.grid_kernels import DULL, FAILED, OUTLIERS, POWERS, SIGNED, SPANS, TESTED

# The least share of tiles that pass, to be told of a tensor that is not on a grid as a whole; and on integers of more than a few bits if no
# tiles share their scales: such integers explain tiles of which a value has moved off a coarser grid
_LEAST_SHARE, _FEW_BITS, _LEAST_OF_MANY_BITS = 0.05, 6, 0.25
# Fewest pairs of tiles that tell whether their scale is the same, and whether those of more bits have it; the share of pairs that must
_FEWEST_PAIRS, _FEW_PAIRS, _SHARED = 16, 4, 0.5
# Least share of pairs with the most bits, without which more bits may have been missed; and of groups that pass to be told themselves
_OFTEN, _OFTEN_IN_LARGE = 0.1, 0.3
# Largest share of pairs of ternary weights that are not
_BY_CHANCE = 0.001
# Least share of tiles that need a zero point
_ZERO_POINTS = 0.25
# Bits of a value on no grid. Grids are alike if they save at least so much of what the best one does.
_NATIVE_BITS, _ALIKE, _AS_MANY = 16.0, 0.9, 0.8


class _Candidate(NamedTuple):
    """A grid of which the smallest tiles were counted, named by those that share their scales.

    offset: whether its levels may begin anywhere; rare: whether other grids of few bits do not look like it, since its scales are powers of
    two, or it has no zero; weights: in each of the smallest tiles; share: of these that pass; saved: bits that codes and scales save for
    them; enough: whether the share is worth telling.
    """

    grid: TensorGrid
    offset: bool
    rare: bool
    weights: int
    share: float
    saved: float
    enough: bool

    def explains_as_much_as(self, other: "_Candidate") -> bool:
        """Return whether as many tiles pass as if each value was on this grid that is on the other, in tiles of other sizes."""
        return int(self.grid.bits) <= int(other.grid.bits) and self.share >= _AS_MANY * other.share ** max(
            1.0, self.weights / other.weights
        )


def partial_grid(grids: Grids, values: int, elements: int, shape: tuple[int, ...]) -> TensorGrid | None:
    """Return the grid that explains a part of a tensor: of those that explain about as much, the one with the fewest bits."""
    values -= grids[ZEROS].values if ZEROS in grids else 0
    keys = [key for key in grids if key != ZEROS]
    smallest = [key for key in keys if not any(book == key[0] and key[1].holds(tile) for book, tile in keys if tile != key[1])]
    named = [_candidate((number, tile), grids, values, elements, shape) for number, tile in sorted(smallest)]
    found = [each for each in named if each is not None]
    if not found:
        return None
    most = max(found, key=lambda each: each.saved)
    alike = [each for each in found if each.saved >= _ALIKE * most.saved or (each.rare and each.explains_as_much_as(most))]
    best = min(alike, key=lambda each: (each.grid.columns, each.offset, each.grid.bits))
    return best.grid if best.enough else None


def _candidate(key: Key, grids: Grids, values: int, elements: int, shape: tuple[int, ...]) -> _Candidate | None:
    book, tile, found = BOOKS[key[0]], key[1], grids[key]
    counts, view = found.counts, (1, elements) if tile.flat else matrix(shape)
    tested = int(counts[TESTED])
    decades = max(evidence_of(book, each) for (number, larger), each in grids.items() if number == key[0] and larger.holds(tile))
    if decades < -PROOF_LOG10 or not found.single[EVIDENCE].any() or tile not in found.pairs:
        return None
    usual = int(found.single[EVIDENCE].argmax())
    powers = book.mantissa > 0 and 2 * int(counts[POWERS]) > tested - int(counts[FAILED])
    if powers:
        shared, sure = Tile(1, 32) if tile.rows == 1 else Tile(32, 1), book.bits < 8
    else:
        shared, sure = _shared(book, tile, found, view, usual)
    alone = powers or shared == tile
    inside = np.sum([each for at, each in found.pairs.items() if (at == tile if alone else at != tile and shared.holds(at))], axis=0)
    for bits in range(usual + 1, MOST_BITS + 1) if not alone else ():
        pairs, same = inside[:2, : usual + 1, bits].sum(1)  # tiles of more bits that share the scale of the others
        usual = bits if pairs >= _FEW_PAIRS and same >= _SHARED * pairs else usual
    pairs = inside[:, : usual + 1].sum(1)
    span, own, ternary = 0, 0, False
    if not book.bits:
        plain = pairs[PLAIN, 1] / max(1, pairs[PLAIN].sum())
        if book.offset and plain >= _SHARED:
            book = INTEGERS
        else:
            ternary = not book.offset and plain >= 1 - _BY_CHANCE
            sure &= not ternary or plain == 1
        span, own = (usual, usual) if alone else (_most(pairs[each]) for each in (PAIR_SPANS, PAIR_SIGNED))
        beyond = pairs[PAIR_SPANS, span + 1 :].sum() > _BY_CHANCE * pairs[PAIR_SPANS].sum()
        if alone:
            zero_points = 1 - pairs[PAIR_SIGNED, : span + 1].sum() / pairs[PAIR_SPANS, : span + 1].sum()
            own += int(zero_points >= _ZERO_POINTS)
        elif beyond or pairs[PAIR_SPANS, span] < (_OFTEN_IN_LARGE if shared.cut else _OFTEN) * pairs[PAIR_SPANS].sum():
            sure = False
        if own <= span and not book.offset:
            sure &= bool(pairs[PAIR_SIGNED, span + 1 :].sum() <= _BY_CHANCE * pairs[PAIR_SIGNED].sum())
    if span > MOST_BITS:
        return None
    weights, whole = (int(np.prod(each.sides(view))) for each in (tile, shared))
    name, level_bits, scale = name_of(book, whole, span, own, ternary, powers)
    by_bits = found.single[PASSED, : span + 1]
    explained = int(by_bits.sum())
    telling = int(found.pairs[tile][SAME_SCALE, : usual + 1, : usual + 1].sum())
    width = np.arange(span + 1) if not book.bits else book.bits
    saved = float((by_bits * (_NATIVE_BITS - width - scale / whole)).sum() + int(counts[DULL]) * _NATIVE_BITS) * weights
    groups = _number(tile, found, values, view)
    if book.mantissa and explained >= groups:  # a float that all of it is on, without being proven to need one
        return None
    enough = explained if not alone else min(explained, telling)
    least = _LEAST_SHARE if not alone or span <= _FEW_BITS else _LEAST_OF_MANY_BITS
    told, on, outliers = groups, explained, 0
    if (named := grids.get((key[0], shared))) is not None and shared != tile:  # the groups themselves, unless most of them are off
        number = _number(shared, named, values, view)
        passed = int(named.counts[SPANS:SIGNED][: span + 1].sum() if not book.bits else named.counts[TESTED] - named.counts[FAILED])
        if passed >= _OFTEN * number:
            told, on, outliers = number, passed, int(named.counts[OUTLIERS])
    grid = TensorGrid(
        format=name,
        group=shared.name,
        columns=tile.rows > 1 and tile.columns == 1,
        groups=told,
        exceptions=max(told - on, 0),
        outliers=outliers,
        log10_chance=-decades,
        chance=chance_of(found),
        bits=level_bits + scale / whole,
        proven=False,
        least=not sure,
    )
    rare = powers or not book.zero
    return _Candidate(grid, book.offset > 0, rare, weights, explained / max(1, groups), saved, enough >= least * groups)


def _number(tile: Tile, found: GridCounts, values: int, view: tuple[int, int]) -> int:
    """Return how many tiles the values read have: a span whose first tiles are off the grid was not counted, and some are cut."""
    tested = int(found.counts[TESTED])
    rows, columns = map(min, tile.sides(view), view)
    return min(tested + -(-(values - found.values) * tested // max(1, found.values)), -(-view[0] // rows) * -(-view[1] // columns))


def _most(by_bits: NDArray[np.int64]) -> int:
    """Return the bits that all but a few of the pairs have at most."""
    return int(np.searchsorted(np.cumsum(by_bits), (1 - FEW_TILES) * by_bits.sum()))


def _shared(book: CodeBook, tile: Tile, found: GridCounts, shape: tuple[int, int], usual: int) -> tuple[Tile, bool]:
    """Return the largest tile of which the tiles inside it share their scale, and whether larger ones are known not to.

    usual: bits that tiles have at most that are on the grid for sure.
    """
    best, apart, sure = tile, set[Tile](), True
    for larger, _, _ in larger_tiles(tile, book, shape):
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
