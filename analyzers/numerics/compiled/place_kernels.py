"""The loops over where pairs changed. `plain_pairs` says what they compute."""

from typing import Any

import numpy as np
from numba import uint8, uint16, uint32, uint64
from numpy.typing import NDArray

from analyzers.numerics.compiled.compiler import jit
from analyzers.numerics.compiled.pair_vectors import BLOCK, differing8, one_nan, ones, order
from analyzers.numerics.compiled.vector_code import room
from analyzers.numerics.pair_cells import GROUP

_WORDS = 256  # of each mask at a time: 64 masks of them stay in cache


@jit()
def flags(a: NDArray[Any], b: NDArray[Any], out: NDArray[np.uint8]) -> None:
    """Set ``out`` (n,) to 1 where the bf16 values of pairs differ, else 0. a, b: (n,) patterns, of bf16 or fp32 each."""
    if a.itemsize == 2 and b.itemsize == 2:  # known when compiled: one of the two ways remains
        for i in range(a.size):
            one, other = uint16(a[i] & uint16(0x7FFF)), uint16(b[i] & uint16(0x7FFF))
            numbers = uint16(min(one, other)) <= uint16(0x7F80)
            out[i] = uint8(uint16(a[i]) != uint16(b[i])) & uint8(uint16(one | other) != uint16(0)) & uint8(numbers)
    else:
        for i in range(a.size):
            one = uint32(uint32(a[i]) << uint32(16 if a.itemsize == 2 else 0))
            other = uint32(uint32(b[i]) << uint32(16 if b.itemsize == 2 else 0))
            out[i] = uint8(order(one_nan(one)) != order(one_nan(other)))


@jit()
def mask(a: NDArray[Any], b: NDArray[Any], out: NDArray[np.uint64]) -> None:
    """Set bit i of word k of ``out`` (ceil(n / 64),) where pair 64 k + i of bf16 values differs. a, b: as in `flags`."""
    found, nothing = room(uint8, BLOCK), room(uint8, GROUP)
    found[:] = 0
    nothing[:] = 0
    for first in range(0, a.size, BLOCK):
        here = found[: min(BLOCK, a.size - first)]
        flags(a[first : first + here.size], b[first : first + here.size], here)
        found[here.size :] = 0
        for word in range(-(-here.size // GROUP)):
            out[first // GROUP + word] = differing8(uint64(found.ctypes.data + GROUP * word), uint64(nothing.ctypes.data))


@jit()
def mark(a: NDArray[Any], b: NDArray[Any], columns: NDArray[np.uint8], rows: NDArray[np.uint8]) -> None:
    """Set to 1 what rows (r,) and columns (c,) of (r, c) pairs, row-major, changed. Without any columns only rows are looked for."""
    length = a.size // rows.size
    found = room(uint8, BLOCK)
    for row in range(rows.size):
        step = BLOCK if columns.size else GROUP  # most rows show a change at once
        stop = 0
        while stop < length:
            first, stop = stop, min(stop + step, length)
            step = min(2 * step, BLOCK)
            here = found[: stop - first]
            flags(a[row * length + first : row * length + stop], b[row * length + first : row * length + stop], here)
            changed = uint8(0)
            for i in range(here.size):
                changed = uint8(changed | here[i])
            if changed != uint8(0):
                rows[row] = 1
                if columns.size == 0:
                    break
                part = columns[first:stop]
                for i in range(here.size):
                    part[i] = uint8(part[i] | here[i])


@jit()
def _shared(one: NDArray[np.uint64], other: NDArray[np.uint64]) -> int:
    bits = uint64(0)
    for i in range(one.size):
        bits += ones(one[i] & other[i])
    return int(bits)


@jit()
def intersections(masks: NDArray[np.uint64], shared: NDArray[np.int64]) -> None:
    """Add to ``shared`` (K, K) how many bits each two of ``masks`` (K, words) have in common."""
    for first in range(0, masks.shape[1], _WORDS):
        stop = min(first + _WORDS, masks.shape[1])
        for i in range(len(masks)):
            for j in range(i, len(masks)):
                shared[i, j] += _shared(masks[i, first:stop], masks[j, first:stop])
    for i in range(len(masks)):
        for j in range(i):
            shared[i, j] = shared[j, i]
