"""Gradients of units sample by sample, made and used within a core's caches (`gradients`)."""

from typing import Any

import numpy as np
from numba import float32, int64, uint64
from numpy.typing import NDArray

from analyzers.numerics.compiled.compiler import jit
from analyzers.numerics.compiled.gradient_passes import (
    COLUMNS,
    LANES,
    SIDE,
    VECTORS,
    inner_products,
    outer_products,
    pack,
    pack_panels,
    spread,
    sum_weights,
)
from analyzers.numerics.compiled.vector_code import LINE, VECTOR_BYTES, address, prefetch

Floats = NDArray[np.float32]

_UNITS = LANES * VECTORS

# Tokens whose vectors stay in a core's nearest cache while they are multiplied with one panel after the other.
_TOKENS = 256
# Columns that are multiplied with one another before the next, of so many samples on each side: these too.
_NEAR, _SAMPLES = 16, 32


@jit()
def arrangement() -> Any:
    """`gradients._Arrangement`."""
    return int64(COLUMNS), int64(_UNITS), int64(LANES), int64(SIDE), int64(_TOKENS)


@jit()
def make_panels(inputs: Floats, factor: float, starts: NDArray[np.int64], samples: tuple[int, int], panels: Floats) -> None:
    """`gradients.Panels.fill`. samples: the first, and the first that is not meant."""
    width = inputs.shape[1]
    whole = -(-width // COLUMNS) * COLUMNS
    for sample in range(*samples):
        tokens = starts[sample + 1] - starts[sample]
        for token in range(tokens):
            row = address(inputs) + uint64(4 * width * (starts[sample] + token))
            place = address(panels) + uint64(4 * (starts[sample] * whole + COLUMNS * token))
            pack_panels(row, uint64(width), factor, place, uint64(4 * COLUMNS * tokens))


@jit()
def unit_grams(
    place: tuple[int, int], factor: float, panels: Floats, starts: NDArray[np.int64], width: int, tile: tuple[int, int],
    packed: Floats, gradients: Floats, blocks: Floats, grams: Floats,
    limits: Floats, sums: NDArray[np.float64], bins: NDArray[np.uint32], dropped: int,
) -> int:  # fmt: skip
    """`gradients.unit_grams`, with room for what it works with. Returns how many weights have a sign in two samples.

    place: address of the first unit's first number, bytes from one token to the next. tile: columns that are made of all samples, and
    how far one sample's are from the next. gradients: (`VECTORS`, S rounded up to `SIDE`, that, `LANES`); packed: (`_TOKENS`, `_UNITS`);
    blocks: (`VECTORS`, S, S, `LANES`) with S rounded up to `LANES`. bins: none where weights are not asked for.
    """
    units, samples = grams.shape[:2]
    columns, apart = tile
    whole = -(-width // COLUMNS) * COLUMNS
    around = -(-samples // LANES) * LANES
    rows, each = -(-samples // SIDE) * SIDE, apart * LANES
    plane, of_vector = uint64(4 * rows * each), uint64(VECTOR_BYTES * around * around)
    for vector in range(VECTORS):  # blocks reach behind the last sample: numbers that are hardly above 0 would take long there
        gradients[(vector * rows + samples) * each : (vector + 1) * rows * each] = float32(0)
    counted = 0
    for unit in range(0, units, _UNITS):
        some = min(_UNITS, units - unit)
        here = uint64(place[0] + 4 * unit)
        for first in range(0, whole, columns):
            count, real = min(columns, whole - first), min(columns, width - first)
            for sample in range(samples):
                own = address(gradients) + uint64(VECTOR_BYTES * apart * sample)
                _make(here, place[1], some, factor, panels, starts, sample, whole, first, count, packed, own, plane)
            for vector in range(VECTORS):
                of_samples, into = address(gradients) + plane * uint64(vector), address(blocks) + of_vector * uint64(vector)
                _multiply(of_samples, apart, samples, real, around, into, first > 0)
                if len(bins) > 0:
                    for column in range(real):
                        weights = of_samples + uint64(VECTOR_BYTES * column)
                        counted += sum_weights(
                            weights, uint64(VECTOR_BYTES * apart), samples, address(limits), address(sums), address(bins), dropped
                        )
        for vector in range(VECTORS):
            shape = (around, samples, some - LANES * vector)
            for sample in range(samples):
                for other in range(0, samples, LANES):
                    if shape[2] > 0:
                        spread(address(blocks) + of_vector * uint64(vector), (sample, other), shape, address(grams[unit + LANES * vector]))
    return counted


@jit()
def _make(
    here: Any, row: int, some: int, factor: float, panels: Floats, starts: NDArray[np.int64], sample: int, whole: int,
    first: int, count: int, packed: Floats, out: Any, plane: Any,
) -> None:  # fmt: skip
    """A tile of one sample's gradients, while what the next sample's will be made of is brought near."""
    start, tokens = starts[sample], starts[sample + 1] - starts[sample]
    panel = address(panels) + uint64(4 * (start * whole + tokens * first))
    for token in range(0, max(tokens, 1), _TOKENS):
        part = min(_TOKENS, tokens - token)
        pack(here + uint64(row * (start + token)), uint64(row), (part, some), factor, address(packed))
        behind = here + uint64(row * (start + token + part))
        left = min(part, starts[-1] - start - token - part)
        for column in range(0, count, COLUMNS):
            for ahead in range(left * column // count, left * min(count, column + COLUMNS) // count):
                for line in range(0, 4 * some, LINE):
                    prefetch(behind + uint64(row * ahead + line))
            numbers = panel + uint64(4 * (tokens * column + COLUMNS * token))
            outer_products(numbers, address(packed), part, out + uint64(VECTOR_BYTES * column), plane, token > 0)


@jit()
def _multiply(gradients: Any, apart: int, samples: int, count: int, around: int, blocks: Any, more: bool) -> None:
    """Products of all samples' tiles of one vector of units, added to ``blocks`` if there are ``more``."""
    stride, row = uint64(VECTOR_BYTES * apart), uint64(VECTOR_BYTES * around)
    for top in range(0, samples, _SAMPLES):
        for left in range(0, top + 1, _SAMPLES):
            for first in range(0, count, _NEAR):
                near, part = gradients + uint64(VECTOR_BYTES * first), min(_NEAR, count - first)
                for one in range(top, min(top + _SAMPLES, samples), SIDE):
                    for other in range(left, min(left + _SAMPLES, one + SIDE, samples), SIDE):
                        block = blocks + uint64(VECTOR_BYTES * (one * around + other))
                        inner_products(
                            near + stride * uint64(one), near + stride * uint64(other), stride, part, block, row, more or first > 0
                        )
