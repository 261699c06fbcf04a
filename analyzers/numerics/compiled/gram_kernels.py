"""What Gram matrices of many units say about each pair of samples, summed over the units in one pass."""

import numpy as np
from numba import float32, uint32
from numpy.typing import NDArray

from analyzers.numerics.compiled.compiler import jit
from analyzers.numerics.compiled.vector_code import flat


@jit()
def add_pairs(
    grams: NDArray[np.float32], smallest: float, floor: float, thresholds: NDArray[np.float32],
    sums: NDArray[np.float64], counts: NDArray[np.uint32], counted: NDArray[np.bool_], rows: NDArray[np.float32],
    matrices: NDArray[np.float32],
) -> int:  # fmt: skip
    """`grams.add_pairs`, with room for what it works with: counted (S,), rows (2, S) and matrices (3, S * S)."""
    samples = grams.shape[1]
    norms, inverse = rows[0], rows[1]
    cosines, compared, similarities = matrices[0], matrices[1], matrices[2]
    no_pair = float32(np.inf)
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
        _add(sums[0], flat(gram))
        _add(sums[1], cosines)
        _add(sums[2], similarities)
        for number in range(thresholds.size):
            _count(counts[number], compared, thresholds[number])
    return zeros


@jit(inline="always")
def _cosines(row: NDArray[np.float32], factor: float, inverse: NDArray[np.float32], cosines: NDArray[np.float32]) -> None:
    for r in range(row.size):
        cosines[r] = row[r] * factor * inverse[r]


@jit(inline="always")
def _similarities(norm: float, inverse: NDArray[np.float32], similarities: NDArray[np.float32]) -> None:
    for r in range(inverse.size):
        ratio = norm * inverse[r]
        similarities[r] = ratio / (ratio * ratio + float32(1)) * float32(2)


@jit(inline="always")
def _add(total: NDArray[np.float64], numbers: NDArray[np.float32]) -> None:
    for i in range(total.size):
        total[i] += numbers[i]


@jit(inline="always")
def _count(count: NDArray[np.uint32], numbers: NDArray[np.float32], threshold: float) -> None:
    for i in range(count.size):
        count[i] += uint32(numbers[i] < threshold)
