"""Gram matrices of many units, and what they say about each pair of samples, summed over the units in one pass."""

from typing import Any

import numpy as np
from numba import float32, uint64
from numpy.typing import NDArray

from analyzers.numerics.compiled.compiler import jit
from analyzers.numerics.compiled.gram_passes import LANES, SIDE, add_block, sum_pairs
from analyzers.numerics.compiled.vector_code import address

# Columns that are multiplied before the next: of both sides of a block they stay in a core's nearest cache.
_NEAR = 1024


@jit()
def gram_matrices(vectors: NDArray[np.float32], grams: NDArray[np.float32], blocks: NDArray[np.float32]) -> None:
    """`grams.gram_matrices`, with room for the blocks of the lower half: more than (S + 4) (S + 8) / 2 numbers."""
    units, samples, width = vectors.shape
    for unit in range(units):
        blocks[:] = float32(0)
        matrix = address(vectors) + uint64(4 * unit * samples * width)
        for start in range(0, width, _NEAR):
            part = (start, min(_NEAR, width - start))
            block = address(blocks)
            for row in range(0, samples, SIDE):
                for column in range(0, row + SIDE, SIDE):
                    add_block(matrix, (samples, width), row, column, part, block)
                    block += uint64(4 * SIDE * SIDE)
        _spread(blocks, grams[unit])


@jit()
def _spread(blocks: NDArray[np.float32], gram: NDArray[np.float32]) -> None:
    """Blocks of the lower half, to both halves of a matrix."""
    samples, number = len(gram), 0
    for row in range(0, samples, SIDE):
        for column in range(0, row + SIDE, SIDE):
            for s in range(row, row + SIDE):
                for r in range(column, column + SIDE):
                    if s < samples and r < samples:
                        gram[s, r] = gram[r, s] = blocks[number]
                    number += 1


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
