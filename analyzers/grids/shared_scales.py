"""Measures whether small tiles that pass share their scale with others nearby: so the tiles of the quantizer are told from parts of them.

Where some values have moved off a grid, small tiles pass more often than large ones, whichever the quantizer had. But if it had large ones,
two small tiles of one of these, wherever it is, have the same scale, and if not, they have it by chance only.
"""

import numpy as np
from numpy.typing import NDArray

from analyzers.grids.code_books import CodeBook, Tile
from analyzers.grids.counts import ALL_PAIRS, PAIR_SIGNED, PAIR_SPANS, SAME_SCALE, TERNARY
from analyzers.grids.levels import Fitted
from analyzers.numerics.grid_kernels import FAILED, LARGEST, MOST_BITS, SIGNED, SPANS, TESTED

Shape = tuple[int, int]
Counts = NDArray[np.int64]
Fits = NDArray[np.float64]

# Evidence, in decades, without which a tile is not counted: it may have passed by chance
TELLING = 1.5
_MOST = MOST_BITS + 1
_SLACK = 1e-9


def larger_tiles(tile: Tile, tiles: tuple[Tile, ...], shape: Shape) -> list[tuple[Tile, Tile]]:
    """Return the tiles of a matrix of ``shape`` that consist of several ``tile``, smallest first, each with the largest inside it."""
    chain, pairs = [tile], []
    different = {other.sides(shape): other for other in reversed(tiles) if other.fits(shape) and other.holds(tile) and other != tile}
    for other in sorted(different.values(), key=lambda each: (np.prod(each.sides(shape)), each.sides(shape))):
        inside = [each for each in chain if other.holds(each)]
        if other.sides(shape) != tile.sides(shape):
            pairs.append((other, inside[-1]))
            chain.append(other)
    return pairs


def count_single(fitted: Fitted, book: CodeBook) -> Counts:
    """Count the tiles that pass with all of their values, and sum the evidence of those that tell (2, bits)."""
    fits = fitted.fits[fitted.fits[:, 1] > 0]
    (bits, _), telling = _bits(book, fits), fits[:, 4] >= TELLING
    evidence = np.bincount(bits[telling], fits[telling, 4], _MOST).astype(np.int64)
    return np.stack([np.bincount(bits, minlength=_MOST), evidence])


def count_pairs(fitted: Fitted, book: CodeBook, tile: Tile, larger: tuple[Tile, Tile], shape: Shape) -> Counts:
    """Count pairs of telling tiles in the same ``larger[0]``, as far apart as a ``larger[1]`` inside it is long, and those of one scale.

    shape: of the matrix. Returns (5, bits, bits), as `counts` has them; of each tile with itself if ``larger`` is the tile.
    """
    down, right = int(fitted.down[-1]) + 1, int(fitted.right[-1]) + 1
    fits, sides = fitted.fits.reshape(down, right, -1), tile.sides(shape)
    outer, inner = (each.sides(shape) for each in larger)
    axis = 1 if inner[1] < outer[1] else 0
    apart = inner[axis] // sides[axis] if larger[0] != tile else 0
    if axis == 0:
        fits = fits.swapaxes(0, 1)
    number = (np.arange(fits.shape[1]) + fitted.first[axis]) * sides[axis] // outer[axis]
    end = max(fits.shape[1] - apart, 0)
    inside = number[:end] == number[apart:]
    one, other = fits[:, :end][:, inside], fits[:, apart:][:, inside]
    both = (one[..., 4] >= TELLING) & (other[..., 4] >= TELLING)
    return _counted(book, one[both], other[both])


def _counted(book: CodeBook, one: Fits, other: Fits) -> Counts:
    counts = np.zeros((5, _MOST, _MOST), np.int64)
    (bits, _), (others, _) = _bits(book, one), _bits(book, other)
    least, most = np.minimum(bits, others), np.maximum(bits, others)
    if book.mantissa:  # twice the levels of a float are levels too
        other = other.copy()
        other[:, :2] *= np.exp2(np.rint(np.log2((one[:, 0] + one[:, 1]) / (other[:, 0] + other[:, 1]))))[:, None]
    low, high = np.maximum(one[:, 0], other[:, 0]), np.minimum(one[:, 1], other[:, 1])
    same = low <= high * (1 + _SLACK)
    pair = np.stack([low, high, np.minimum(one[:, 2], other[:, 2]), np.maximum(one[:, 3], other[:, 3])], axis=1)[same]
    spans, signed = _bits(book, pair)
    np.add.at(counts[ALL_PAIRS], (least, most), 1)
    np.add.at(counts[SAME_SCALE], (least[same], most[same]), 1)
    np.add.at(counts[PAIR_SPANS], (least[same], spans), 1)
    np.add.at(counts[PAIR_SIGNED], (least[same], signed), 1)
    np.add.at(counts[TERNARY], (least[same], ((pair[:, 2] == -1) & (pair[:, 3] == 1)).astype(int)), 1)
    return counts


def _bits(book: CodeBook, fits: Fits) -> tuple[Counts, Counts]:
    """Return the bits of integers with a zero point, and of signed ones, by their lowest and highest."""
    if book.bits:
        return np.zeros(len(fits), np.int64), np.zeros(len(fits), np.int64)
    lowest, highest = fits[:, 2], fits[:, 3]
    spans = np.rint((highest - lowest) / ((fits[:, 0] + fits[:, 1]) / 2)) if book.offset else highest - lowest
    most, least = np.maximum(highest, -lowest), np.minimum(highest, -lowest)
    signed = 1 + np.maximum(np.frexp(most - 0.5)[1], np.frexp(least + 0.5)[1]) if not book.offset else np.zeros(len(fits))
    return np.minimum(np.frexp(spans + 0.5)[1], _MOST - 1).astype(np.int64), np.minimum(signed, _MOST - 1).astype(np.int64)


def as_single(counts: Counts) -> Counts:
    """Return the counts of tiles that all pass, of which ``counts`` may have the bits of larger ones around them."""
    spans = counts[SPANS:SIGNED] * counts[TESTED] // max(1, counts[SPANS:SIGNED].sum())
    return np.stack([spans, spans])


def as_pairs(counts: Counts) -> Counts:
    """Return the counts of tiles as those of pairs: in a chunk without smaller tiles that fail, they do for different scales only."""
    pairs = np.zeros((5, _MOST, _MOST), np.int64)
    pairs[ALL_PAIRS, 0, 0], pairs[SAME_SCALE, 0, 0] = counts[TESTED], counts[TESTED] - counts[FAILED]
    pairs[PAIR_SPANS, 0], pairs[PAIR_SIGNED, 0] = counts[SPANS:SIGNED], counts[SIGNED:LARGEST]
    pairs[TERNARY, 0, int(counts[LARGEST] == 1)] = pairs[SAME_SCALE, 0, 0]
    return pairs
