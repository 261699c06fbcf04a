"""What Gram matrices of many units say about samples and their pairs, summed over the units in one pass."""

import numpy as np
from numpy.typing import NDArray

from analyzers.numerics.machine_code import Loop

_sum_over_units = Loop("gram_kernels", "sum_over_units")
_sum_over_others = Loop("gram_kernels", "sum_over_others")
_sum_shares = Loop("gram_kernels", "sum_shares")
_add_batches = Loop("gram_kernels", "add_batches")


def sum_over_units(
    grams: NDArray[np.float32], smallest: float, floor: float, thresholds: NDArray[np.float32]
) -> tuple[int, NDArray[np.float64], NDArray[np.uint32]]:
    """How many units and samples have no gradient; sums and counts of the pairs, symmetric.

    grams: (n, S, S). A sample counts in a unit where its square is above ``smallest`` and its norm not below ``floor``.
    sums: (3, S, S), of Gram matrices, cosines and similarities. counts: (5, S, S), how often a pair counts and has a cosine below each of
    ``thresholds`` (5,). cos = G[s, r] / (|s| |r|) and similarity 2|s||r| / (|s|^2 + |r|^2), in float32 and 0 where a pair does not count.
    """
    units, samples = grams.shape[:2]
    sums, counts = np.zeros((3, samples, samples)), np.zeros((5, samples, samples), np.uint32)
    rooms = np.empty((2, units, samples), np.float32)
    return int(_sum_over_units(grams, smallest, floor, thresholds, sums, counts, *rooms)), sums, counts


def sum_over_others(
    grams: NDArray[np.float32], smallest: float, floor: float, threshold: float, chosen: NDArray[np.float32]
) -> NDArray[np.float32]:
    """(3, n, S): of each unit and chosen sample, over the other chosen ones, the pairs that count, those with a cosine below ``threshold``,
    and their similarities.

    grams: (n, S, S), symmetric; chosen: (S,), 1 or 0. What counts, cosines and similarities are those of `sum_over_units`.
    """
    units, samples = grams.shape[:2]
    sums = np.empty((3, units, samples), np.float32)
    _sum_over_others(grams, smallest, floor, threshold, chosen, sums, *np.empty((3, samples), np.float32))
    return sums


def sum_shares(grams: NDArray[np.float32], smallest: float) -> tuple[int, float, float, NDArray[np.float64]]:
    """How many units have a gradient; summed over them the largest sample's share of sum |g|^2, and (sum |g|^2)^2 / sum |g|^4; and (S,), in
    how many of them a sample has the largest norm, the first of several equal ones.

    grams: (n, S, S). A square that is not above ``smallest`` is 0.
    """
    leading, squares = np.zeros((2, grams.shape[1]))
    live, top_share, effective = _sum_shares(grams, smallest, leading, squares)
    return live, top_share, effective, leading


def add_batches(
    grams: NDArray[np.float32], members: NDArray[np.int64], smallest: float, threshold: float, sums: NDArray[np.float64]
) -> None:
    """Add to ``sums`` (3,), over units and draws: pairs of batches that count, those with a cosine below ``threshold``, and the cosines.

    grams: (n, S, S), symmetric; members: (D, m, size), the samples of the m batches of each draw. The Gram matrix of batches is that of
    the means of their samples' gradients; a batch counts in a unit where its square is above ``smallest``.
    """
    batches, samples = members.shape[1], grams.shape[1]
    rooms = (np.empty(shape, np.float32) for shape in ((batches, samples), (batches, batches), batches, batches))
    _add_batches(grams, members, smallest, threshold, sums, *rooms)


def warm() -> None:
    """Load it, compiled if that was never done."""
    one = np.ones((1, 1, 1), np.float32)
    sum_over_units(one, 0.0, 0.0, np.ones(5, np.float32))
    sum_over_others(one, 0.0, 0.0, 0.0, np.ones(1, np.float32))
    sum_shares(one, 0.0)
    add_batches(one, np.zeros((1, 1, 1), np.int64), 0.0, 0.0, np.zeros(3))
