"""The grids that the values of quantized tensors lie on: their steps and ends, and the nearest values on them."""

from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from analyzers.checkpoints.elements import read_elements
from analyzers.checkpoints.quantization.decoded_file import read_stored
from analyzers.checkpoints.quantization.quantized import Field, Floats, Quantized
from analyzers.checkpoints.tensor import Tensor

Doubles = NDArray[np.float64]


class Grid(NamedTuple):
    """The grid around each of n values, all (n,) float32.

    values: as decoded; below, above: distances to the neighbours on the grid, at its ends that to the only neighbour; low, high: the ends
    of the grid. Of layouts whose values have no such grid (GGUF's i-quants), all but ``values`` are NaN.
    """

    values: Floats
    below: Floats
    above: Floats
    low: Floats
    high: Floats


def grid(tensor: Tensor, start: int, count: int) -> Grid:
    """Return the grid of elements ``start`` to ``start + count`` of a tensor with ``stored``, or of a view of one.

    What the same thread has just read of the tensor is not read again. Raises what reads raise.
    """
    assert tensor.stored is not None
    values, *others = (field(tensor, name, start, count) for name in ("value", "level", "scale", "zero", "bias"))
    level, scale, zero, bias = (each.astype(np.float64) for each in others)
    levels = levels_of(tensor.stored)
    with np.errstate(all="ignore"):
        at = np.clip(np.searchsorted(levels, level), 0, len(levels) - 1)
        steps = np.diff(levels)
        below, above = steps[np.maximum(at - 1, 0)] * np.abs(scale), steps[np.minimum(at, len(steps) - 1)] * np.abs(scale)
        ends = [(levels[end] - zero) * scale + bias for end in (0, -1)]
        negative = scale < 0
        fields = np.where(negative, above, below), np.where(negative, below, above), np.minimum(*ends), np.maximum(*ends)
        return Grid(values, *(each.astype(np.float32) for each in fields))


def nearest(tensor: Tensor, start: int, values: Floats) -> Floats:
    """Round (n,) values to the nearest ones of the grids of elements ``start`` to ``start + n``: with the same scales and zero points."""
    assert tensor.stored is not None
    scale, zero, bias = (field(tensor, name, start, len(values)).astype(np.float64) for name in ("scale", "zero", "bias"))
    levels = levels_of(tensor.stored)
    with np.errstate(all="ignore"):
        wanted = (values.astype(np.float64) - bias) / scale + zero
        level = levels[np.searchsorted((levels[1:] + levels[:-1]) / 2, wanted)].astype(np.float32)
        values = (level - zero.astype(np.float32)) * scale.astype(np.float32) + bias.astype(np.float32)
    return values


def levels_of(stored: Quantized) -> Doubles:
    """Return the finite values of codes, in ascending order."""
    assert not isinstance(stored.table, Tensor)
    return np.unique(stored.table[np.isfinite(stored.table)]).astype(np.float64)


def field(tensor: Tensor, name: Field, start: int, count: int) -> NDArray[np.float32]:
    """Return what elements ``start`` to ``start + count`` are computed from: value = (level - zero) x scale + bias."""
    assert tensor.stored is not None and tensor.stored.file is not None
    file, buffer = tensor.stored.file, np.empty(4 * count, np.uint8)
    read_into, read_box = partial(file.decode_into, read_stored, field=name), partial(file.decode_box, read_stored, field=name)
    return read_elements(read_into, tensor, start, count, buffer, read_box).view(np.float32)
