"""Measures whether small tiles that pass share their scale with others nearby: so the tiles of the quantizer are told from parts of them.

Where some values have moved off a grid, small tiles pass more often than large ones, whichever the quantizer had. But if it had large ones,
two small tiles of one of these, wherever it is, have the same scale, and if not, they have it by chance only.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from analyzers.grids.code_books import INTEGERS, CodeBook, Tile
from analyzers.grids.counts import ALL_PAIRS, PAIR_SIGNED, PAIR_SPANS, PLAIN, SAME_SCALE
from analyzers.grids.levels import Fitted
from analyzers.numerics.grid_kernels import FAILED, LARGEST, MOST_BITS, SIGNED, SPANS, TESTED

Shape = tuple[int, int]
Counts = NDArray[np.int64]
Fits = NDArray[np.float64]

# Evidence, in decades, without which a tile is not counted: it may have passed by chance
TELLING = 1.5
_MOST = MOST_BITS + 1
_SLACK = 1e-9
# Share of a step by which an offset may miss its multiple
_INEXACT = 0.1


class Larger(NamedTuple):
    """A tile that consists of several small ones. axis, apart: along which two of these are compared, and how many elements apart."""

    tile: Tile
    axis: int
    apart: int


def larger_tiles(tile: Tile, book: CodeBook, shape: Shape) -> list[Larger]:
    """Return the tiles of a matrix of ``shape`` that consist of several ``tile``, smallest first.

    Two small tiles in one of them are compared that are in none of those inside it together.
    """
    tiles = INTEGERS.tiles if book.offset else book.tiles
    different = {other.sides(shape): other for other in reversed(tiles) if other.fits(shape) and other.holds(tile)}
    found, inside = list[Larger](), [tile]
    for sides, other in sorted(different.items(), key=lambda each: (np.prod(each[0]), each[0])):
        held = [each.sides(shape) for each in inside if other.holds(each)]
        axes = [axis for axis in (1, 0) if any(each[1 - axis] == sides[1 - axis] and each[axis] < sides[axis] for each in held)]
        if axes:
            found.append(Larger(other, axes[0], max(each[axes[0]] for each in held if each[axes[0]] < sides[axes[0]])))
            inside.append(other)
    return found


def count_single(fitted: Fitted, book: CodeBook) -> Counts:
    """Count the tiles that pass with all of their values, and sum the evidence of those that tell (2, bits)."""
    fits = fitted.fits[fitted.fits[:, 1] > 0]
    (bits, _), telling = _bits(book, fits), fits[:, 4] >= TELLING
    evidence = np.bincount(bits[telling], fits[telling, 4], _MOST).astype(np.int64)
    return np.stack([np.bincount(bits, minlength=_MOST), evidence])


def count_pairs(fitted: Fitted, book: CodeBook, tile: Tile, larger: Larger, shape: Shape) -> Counts:
    """Count pairs of telling tiles in the same larger one, and those of one scale; of each tile with itself if they are 0 apart.

    shape: of the matrix. Returns (5, bits, bits), as `counts` has them.
    """
    down, right = int(fitted.down[-1]) + 1, int(fitted.right[-1]) + 1
    fits, axis, side = fitted.fits.reshape(down, right, -1), larger.axis, tile.sides(shape)[larger.axis]
    apart, outer = larger.apart // side, larger.tile.sides(shape)[axis]
    if axis == 0:
        fits = fits.swapaxes(0, 1)
    number = (np.arange(fits.shape[1]) + fitted.first[axis]) * side // outer
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
    plain = _is_multiple(pair) if book.offset else np.maximum(-pair[:, 2], pair[:, 3]) == 1
    np.add.at(counts[PLAIN], (least[same], plain.astype(int)), 1)
    return counts


def _bits(book: CodeBook, fits: Fits) -> tuple[Counts, Counts]:
    """Return the bits of integers with a zero point, and of signed ones, by their lowest and highest."""
    if book.bits:
        return np.zeros(len(fits), np.int64), np.zeros(len(fits), np.int64)
    steps = fits[:, 2:4] / ((fits[:, :1] + fits[:, 1:2]) / 2) if book.offset else fits[:, 2:4]
    lowest, highest = np.rint(steps).T
    most, least = np.maximum(highest, -lowest), np.minimum(highest, -lowest)
    signed = 1 + np.maximum(np.frexp(most - 0.5)[1], np.frexp(least + 0.5)[1])
    spans = np.frexp(np.rint(steps[:, 1] - steps[:, 0]) + 0.5)[1]
    return np.minimum(spans, _MOST - 1).astype(np.int64), np.minimum(signed, _MOST - 1).astype(np.int64)


def _is_multiple(fits: Fits) -> NDArray[np.bool_]:
    """Return whether the lowest value is a multiple of the step, as far as that is known."""
    step = (fits[:, 0] + fits[:, 1]) / 2
    multiple = fits[:, 2] / step
    error = np.abs(multiple) * (fits[:, 1] - fits[:, 0]) / step
    whole: NDArray[np.bool_] = np.abs(multiple - np.rint(multiple)) <= np.minimum(error, _INEXACT) + _SLACK
    return whole


def as_single(counts: Counts) -> Counts:
    """Return the counts of tiles that all pass, of which ``counts`` may have the bits of larger ones around them."""
    spans = counts[SPANS:SIGNED] * counts[TESTED] // max(1, counts[SPANS:SIGNED].sum())
    return np.stack([spans, spans])


def as_pairs(counts: Counts) -> Counts:
    """Convert counts of large tiles to counts of pairs, for a chunk in which every small tile passes.

    There a large tile fails only if its small tiles have different scales: it is one pair, of the same scale if the large tile passes.
    """
    pairs = np.zeros((5, _MOST, _MOST), np.int64)
    pairs[ALL_PAIRS, 0, 0], pairs[SAME_SCALE, 0, 0] = counts[TESTED], counts[TESTED] - counts[FAILED]
    pairs[PAIR_SPANS, 0], pairs[PAIR_SIGNED, 0] = counts[SPANS:SIGNED], counts[SIGNED:LARGEST]
    pairs[PLAIN, 0, int(counts[LARGEST] == 1)] = pairs[SAME_SCALE, 0, 0]
    return pairs
