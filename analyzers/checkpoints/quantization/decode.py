"""Decodes scaled fp8 and fp4 weights into fp32 bit patterns.

Values are computed as in loading code: code and scale as float32, their product rounded once. fp4 scales with a
global factor are first multiplied, or divided, by it, which is rounded too. A NaN scale of E8M0 yields NaN.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from analyzers.checkpoints.tensor import Scale, Tensor
from analyzers.numerics.bins import NARROW
from analyzers.numerics.conversions import fp32_of, fp32_table
from analyzers.numerics.decode_kernels import decode
from analyzers.numerics.formats import FNUZ, FP4_E2M1, e8m0_values

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
# Arguments: tensor, first element, number of elements, byte buffer. Returns the bit patterns.
Read = Callable[[Tensor, int, int, Bytes], NDArray[Any]]


class Grid(NamedTuple):
    """Layout of the scales of a weight of (matrices, rows, columns), row-major: one per block of each matrix, partial at the edges."""

    rows: int
    columns: int
    block_rows: int
    block_columns: int
    scale_rows: int
    scale_columns: int

    @classmethod
    def of(cls, tensor: Tensor, scale: Scale) -> "Grid":
        """Return the grid of ``tensor``; with a single scale, the whole tensor is one matrix and one block."""
        columns = tensor.shape[-1]
        if scale.tensor.elements == 1:
            rows = prod(tensor.shape[:-1])
            return cls(rows, columns, rows, columns, 1, 1)
        rows = tensor.shape[-2] if len(tensor.shape) > 1 else 1
        block_rows, block_columns = scale.block
        return cls(rows, columns, block_rows, block_columns, -(-rows // block_rows), -(-columns // block_columns))

    def scale_of(self, element: int) -> int:
        """Return the index of the scale of ``element``. It never decreases within a row or from row to row."""
        row, column = divmod(element, self.columns)
        matrix, row = divmod(row, self.rows)
        return (matrix * self.scale_rows + row // self.block_rows) * self.scale_columns + column // self.block_columns

    def span(self, start: int, stop: int) -> tuple[int, int]:
        """Return the first and the last + 1 index of the scales of elements ``start`` to ``stop`` - 1."""
        if start // self.columns == (stop - 1) // self.columns:
            return self.scale_of(start), self.scale_of(stop - 1) + 1
        first = self.scale_of(start - start % self.columns)
        return first, self.scale_of((stop - 1) // self.columns * self.columns) + self.scale_columns


def scale_reads(tensor: Tensor) -> int:
    """Return the number of reads that a short span of ``tensor`` needs in addition to the read of its codes."""
    return 0 if tensor.scale is None else 1 if tensor.scale.factor is None else 2


def scale_bits(tensor: Tensor) -> int:
    """Return the bits of memory per element for the scales of ``tensor``, as float32, rounded up."""
    return 0 if tensor.scale is None else 32 // Grid.of(tensor, tensor.scale).block_columns + 1


def stored_bytes(tensor: Tensor, start: int, count: int) -> int:
    """Return the bytes to read for ``count`` elements of ``tensor`` from ``start`` on, including their scales."""
    if count == 0:
        return 0
    nbytes = -(-(start + count) * tensor.bits // 8) - start * tensor.bits // 8
    if tensor.scale is None:
        return nbytes
    first, last = Grid.of(tensor, tensor.scale).span(start, start + count)
    factor = tensor.scale.factor
    return nbytes + (last - first) * tensor.scale.tensor.itemsize + (factor.nbytes if factor else 0)


class ScaledCodes:
    """Elements ``start`` to ``start + count`` of a scaled tensor: codes and scales are read at once, slices are decoded on access.

    buffer: large enough for the codes; a slice is valid until the next access.
    """

    def __init__(self, tensor: Tensor, start: int, count: int, buffer: Bytes, read: Read) -> None:
        assert tensor.scale is not None
        self._start, self._count, self._bits = start, count, tensor.bits
        self._grid = Grid.of(tensor, tensor.scale)
        self._table = _table("F4" if tensor.bits == 4 else tensor.dtype)
        self._out = np.empty(0, dtype=np.float32)
        if count:
            codes = replace(tensor, dtype="U8", shape=(tensor.nbytes,), scale=None) if tensor.bits == 4 else tensor
            self._byte = start * tensor.bits // 8
            self._codes = read(codes, self._byte, -(-(start + count) * tensor.bits // 8) - self._byte, buffer)
            self._first, last = self._grid.span(start, start + count)
            self._scales = _scales(tensor.scale, self._first, last, read)

    def __getitem__(self, part: slice) -> NDArray[np.uint32]:
        """Decode elements ``part``, counted from the first element read, into fp32 bit patterns."""
        first, stop = self._start + part.start, self._start + min(part.stop, self._count)
        if first >= stop:
            return np.empty(0, dtype=np.uint32)
        if self._out.size < stop - first:
            self._out = np.empty(stop - first, dtype=np.float32)
        values = self._out[: stop - first]
        codes = self._codes[first * self._bits // 8 - self._byte :]
        decode(codes, first, tuple(self._grid), self._scales, self._first, self._table, values)
        return values.view(np.uint32)


def _scales(scale: Scale, first: int, last: int, read: Read) -> Floats:
    """Return scales ``first`` to ``last`` - 1, with the global factor applied."""
    values = _float32(scale.tensor, first, last, read)
    if scale.factor is None:
        return values
    factor = _float32(scale.factor, 0, 1, read)[0]
    with np.errstate(all="ignore"):
        whole: Floats = values / factor if scale.divides else values * factor
    return whole


def _float32(tensor: Tensor, first: int, last: int, read: Read) -> Floats:
    codes = read(tensor, first, last - first, np.empty((last - first) * tensor.itemsize, dtype=np.uint8))
    if tensor.dtype in ("F32", "F16", "BF16"):
        return fp32_of(codes, tensor.dtype).view(np.float32)
    return _table(tensor.dtype)[codes]


@cache
def _table(dtype: str) -> Floats:
    """Return the value of each code: a byte, or half a byte for E2M1. Bytes of non-float dtypes are read as E8M0."""
    if dtype in NARROW or dtype in FNUZ:
        return fp32_table(dtype).view(np.float32)
    return (FP4_E2M1.decode() if dtype == "F4" else e8m0_values()).astype(np.float32)
