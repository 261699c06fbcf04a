"""What Gram matrices of many units say about samples and their pairs, summed over the units in one pass (`grams`)."""

from typing import Any

import numpy as np
from numba import float32
from numpy.typing import NDArray

from analyzers.numerics.compiled.compiler import jit
from analyzers.numerics.compiled.gram_passes import LANES, sum_pairs
from analyzers.numerics.compiled.vector_code import address


@jit()
def sum_over_units(
    grams: NDArray[np.float32], smallest: float, floor: float, thresholds: NDArray[np.float32],
    sums: NDArray[np.float64], counts: NDArray[np.uint32], norms: NDArray[np.float32], inverse: NDArray[np.float32],
) -> int:  # fmt: skip
    """`grams.sum_over_units`, with room for what it works with: norms and inverse (n, S)."""
    units, samples = norms.shape
    zeros = 0
    for unit in range(units):
        zeros += _norms(grams[unit], smallest, floor, norms[unit], inverse[unit])
    places = address(grams), address(norms), address(inverse)
    for s in range(samples):
        for first in range(0, s + 1, LANES):
            sum_pairs(*places, (units, samples), (s, first), address(thresholds), address(sums), address(counts))
    for number in range(len(sums)):
        _mirror(sums[number])
    for number in range(len(counts)):
        _mirror(counts[number])
    return zeros


@jit()
def _mirror(matrix: NDArray[Any]) -> None:
    """The lower half on both sides."""
    for s in range(len(matrix)):
        for r in range(s):
            matrix[r, s] = matrix[s, r]


@jit(fastmath={"reassoc", "contract", "nsz"})
def sum_over_others(
    grams: NDArray[np.float32], smallest: float, floor: float, threshold: float, chosen: NDArray[np.float32],
    sums: NDArray[np.float32], norms: NDArray[np.float32], inverse: NDArray[np.float32], weights: NDArray[np.float32],
) -> None:  # fmt: skip
    """`grams.sum_over_others`, with room for what it works with: norms, inverse and weights (S,)."""
    units, samples = len(grams), len(norms)
    limit = float32(threshold)
    for unit in range(units):
        gram = grams[unit]
        _norms(gram, smallest, floor, norms, inverse)
        for s in range(samples):
            weights[s] = chosen[s] if inverse[s] > float32(0) else float32(0)
        for s in range(samples):
            pairs, below, similarity = float32(0), float32(0), float32(0)
            weight = weights[s]
            if weight > float32(0):
                row, norm, own = gram[s], norms[s], inverse[s]
                weights[s] = float32(0)
                for r in range(samples):
                    cosine, ratio = row[r] * own * inverse[r], norm * inverse[r]
                    pairs += weights[r]
                    below += weights[r] if cosine < limit else float32(0)
                    similarity += weights[r] * (ratio + ratio) / (ratio * ratio + float32(1))
                weights[s] = weight
            sums[0, unit, s], sums[1, unit, s], sums[2, unit, s] = pairs, below, similarity


@jit()
def _norms(gram: NDArray[np.float32], smallest: float, floor: float, norms: NDArray[np.float32], inverse: NDArray[np.float32]) -> int:
    """Of the samples of a unit, and 1 over them; 0 for those that do not count, of which it returns the number."""
    zeros = 0
    for s in range(len(norms)):
        square = gram[s, s]
        norms[s] = np.sqrt(max(square, float32(0)))
        counted = square > smallest and norms[s] >= floor
        inverse[s] = float32(1) / norms[s] if counted else float32(0)
        zeros += not counted
    return zeros


@jit()
def sum_shares(
    grams: NDArray[np.float32], smallest: float, leading: NDArray[np.float64], squares: NDArray[np.float64]
) -> tuple[int, float, float]:
    """`grams.sum_shares`, with room for the squares of a unit, (S,)."""
    live, top_share, effective = 0, 0.0, 0.0
    for unit in range(len(grams)):
        total, fourth, first = 0.0, 0.0, 0
        for s in range(len(squares)):
            square = grams[unit, s, s]
            squares[s] = square if square > smallest else 0.0
            total += squares[s]
            fourth += squares[s] * squares[s]
            first = s if squares[s] > squares[first] else first
        if total > 0:
            live += 1
            top_share += squares[first] / total
            effective += total * total / fourth
            leading[first] += 1
    return live, top_share, effective


@jit()
def add_batches(
    grams: NDArray[np.float32], members: NDArray[np.int64], smallest: float, threshold: float, sums: NDArray[np.float64],
    rows: NDArray[np.float32], products: NDArray[np.float32], norms: NDArray[np.float32], inverse: NDArray[np.float32],
) -> None:  # fmt: skip
    """`grams.add_batches`, with room for what it works with: rows (m, S), products (m, m), norms and inverse (m,)."""
    draws, batches, size = members.shape
    share = float32(1 / size**2)
    pairs, below, cosines = 0, 0, 0.0
    for unit in range(len(grams)):
        gram = grams[unit]
        for draw in range(draws):
            for b in range(batches):
                rows[b, :] = float32(0)
                for i in range(size):
                    _add(rows[b], gram[members[draw, b, i]])
            for b in range(batches):
                for c in range(b + 1):
                    total = float32(0)
                    for i in range(size):
                        total += rows[b, members[draw, c, i]]
                    products[b, c] = total * share
            _norms(products, smallest, 0.0, norms, inverse)
            for b in range(batches):
                for c in range(b):
                    cosine = products[b, c] * inverse[b] * inverse[c]
                    counted = inverse[b] > float32(0) and inverse[c] > float32(0)
                    pairs += counted
                    below += counted and cosine < threshold
                    cosines += cosine
    sums[0] += pairs
    sums[1] += below
    sums[2] += cosines


@jit(inline="always")
def _add(total: NDArray[np.float32], numbers: NDArray[np.float32]) -> None:
    for i in range(total.size):
        total[i] += numbers[i]
