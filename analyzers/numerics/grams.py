"""What Gram matrices of many units say about each pair of samples, summed over the units in one pass."""

import numpy as np
from numpy.typing import NDArray

from analyzers.numerics.machine_code import Loop

_add_pairs = Loop("gram_kernels", "add_pairs")


def add_pairs(
    grams: NDArray[np.float32], smallest: float, floor: float, thresholds: NDArray[np.float32],
    sums: NDArray[np.float64], counts: NDArray[np.uint32],
) -> int:  # fmt: skip
    """Add units' matrices to ``sums`` and ``counts``; returns how many units and samples have no gradient.

    grams: (n, S, S). A sample counts in a unit where its square is above ``smallest`` and its norm not below ``floor``.
    sums: (3, S * S), of Gram matrices, cosines and similarities. counts: (t, S * S), how often a pair counts and has a cosine below each of
    ``thresholds`` (t,). cos = G[s, r] / (|s| |r|) and similarity 2|s||r| / (|s|^2 + |r|^2), in float32 and 0 where a pair does not count.
    """
    samples = grams.shape[1]
    rows, matrices = np.empty((2, samples), np.float32), np.empty((3, samples * samples), np.float32)
    return int(_add_pairs(grams, smallest, floor, thresholds, sums, counts, np.empty(samples, np.bool_), rows, matrices))


def warm() -> None:
    """Load it, compiled if that was never done."""
    one = np.ones((1, 1, 1), np.float32)
    add_pairs(one, 0.0, 0.0, one[0, 0], np.zeros((3, 1)), np.zeros((1, 1), np.uint32))
