"""What Gram matrices of many units say about each pair of samples, summed over the units in one pass: numba on the CPU, like `kernels`."""

import numba
import numpy as np
from numba import float32, uint32
from numpy.typing import NDArray

from analyzers.numerics.compiler import jit


@jit(error_model="numpy")
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
    norms, inverse = np.empty(samples, np.float32), np.empty(samples, np.float32)
    counted, no_pair = np.empty(samples, np.bool_), float32(np.inf)
    cosines = np.empty(samples * samples, np.float32)
    compared, similarities = np.empty_like(cosines), np.empty_like(cosines)
    zeros = 0
    # Simple loops over few arrays each: the compiler makes vectors of such ones, and long ones cost least.
    for unit in range(grams.shape[0]):
        gram = grams[unit]
        for s in range(samples):
            norms[s] = np.sqrt(max(gram[s, s], float32(0)))
            counted[s] = gram[s, s] > smallest and norms[s] >= floor
            inverse[s] = float32(1) / norms[s] if counted[s] else float32(0)
            zeros += not counted[s]
        for s in range(samples):
            first = s * samples
            _cosines(gram[s], inverse[s], inverse, cosines[first : first + samples])
            if counted[s]:
                _similarities(norms[s], inverse, similarities[first : first + samples])
                for r in range(samples):
                    compared[first + r] = cosines[first + r] if counted[r] else no_pair
            else:
                similarities[first : first + samples] = float32(0)
                compared[first : first + samples] = no_pair
        _add(sums[0], gram.ravel())
        _add(sums[1], cosines)
        _add(sums[2], similarities)
        for number in range(thresholds.size):
            _count(counts[number], compared, thresholds[number])
    return zeros


@numba.njit(inline="always")
def _cosines(row: NDArray[np.float32], factor: float, inverse: NDArray[np.float32], cosines: NDArray[np.float32]) -> None:
    for r in range(row.size):
        cosines[r] = row[r] * factor * inverse[r]


@numba.njit(inline="always", error_model="numpy")
def _similarities(norm: float, inverse: NDArray[np.float32], similarities: NDArray[np.float32]) -> None:
    for r in range(inverse.size):
        ratio = norm * inverse[r]
        similarities[r] = ratio / (ratio * ratio + float32(1)) * float32(2)


@numba.njit(inline="always")
def _add(total: NDArray[np.float64], numbers: NDArray[np.float32]) -> None:
    for i in range(total.size):
        total[i] += numbers[i]


@numba.njit(inline="always")
def _count(count: NDArray[np.uint32], numbers: NDArray[np.float32], threshold: float) -> None:
    for i in range(count.size):
        count[i] += uint32(numbers[i] < threshold)


def warm() -> None:
    """Compile all of it, or load it from numba's cache."""
    one = np.ones((1, 1, 1), np.float32)
    add_pairs(one, 0.0, 0.0, one[0, 0], np.zeros((3, 1)), np.zeros((1, 1), np.uint32))
