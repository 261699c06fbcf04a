"""The loops over where pairs changed, told by bits. `plain_pairs` says what they compute."""

from typing import Any

import numpy as np
from numba import int64, uint8, uint64
from numpy.typing import NDArray

from analyzers.numerics.compiled.compiler import jit
from analyzers.numerics.compiled.pair_vectors import ones
from analyzers.numerics.pair_cells import GROUP

Words = NDArray[np.uint64]

_WORDS = 256  # of each mask at a time: 64 masks of them stay in cache


@jit(inline="always")
def _bits(mask: Any, at: Any, count: Any) -> Any:
    """The ``count`` bits of ``mask``, 1 to 64, from number ``at`` on."""
    word, shift = at // GROUP, uint64(at % GROUP)
    found = mask[word] >> shift
    if int64(shift) + count > GROUP:
        found |= mask[word + 1] << (uint64(GROUP) - shift)
    return found & (~uint64(0) >> uint64(GROUP - count))


@jit()
def mark_places(mask: Words, first: int, column: int, length: int, columns: Words, rows: NDArray[np.uint8]) -> None:
    """Set to 1 what ``rows`` (r,) have a bit among those of ``mask`` from ``first`` on, ``length`` to a row, and add these to ``columns``.

    columns: a bit for each column of the matrix, or none; those of the rows begin at ``column``.
    """
    aligned = (first | column | length) % GROUP == 0
    for row in range(rows.size):
        start = first + row * length
        changed = uint64(0)
        if aligned:
            here = mask[start // GROUP : (start + length) // GROUP]
            for i in range(here.size):
                changed |= here[i]
            if changed != uint64(0) and columns.size:
                there = columns[column // GROUP : (column + length) // GROUP]
                for i in range(here.size):
                    there[i] |= here[i]
        else:
            done = 0
            while done < length:
                inside = (column + done) % GROUP
                count = min(GROUP - inside, length - done)
                found = _bits(mask, start + done, count)
                changed |= found
                if columns.size:
                    columns[(column + done) // GROUP] |= found << uint64(inside)
                done += count
        rows[row] |= uint8(changed != uint64(0))


@jit()
def _shared(one: Words, other: Words) -> int:
    bits = uint64(0)
    for i in range(one.size):
        bits += ones(one[i] & other[i])
    return int(bits)


@jit()
def intersections(masks: Words, shared: NDArray[np.int64]) -> None:
    """Add to ``shared`` (K, K) how many bits each two of ``masks`` (K, words) have in common."""
    for first in range(0, masks.shape[1], _WORDS):
        stop = min(first + _WORDS, masks.shape[1])
        for i in range(len(masks)):
            for j in range(i, len(masks)):
                shared[i, j] += _shared(masks[i, first:stop], masks[j, first:stop])
    for i in range(len(masks)):
        for j in range(i):
            shared[i, j] = shared[j, i]
