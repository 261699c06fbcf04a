"""Decodes scaled fp8 and fp4 weights piece by piece into fp32 bit patterns.

Values are computed as in loading code: code and scale as float32, their product rounded once. fp4 scales with a
global factor are first multiplied, or divided, by it, which is rounded too. A NaN scale of E8M0 yields NaN.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from analyzers.checkpoints.tensor import Scale, Tensor
from analyzers.numerics.bins import NARROW
from analyzers.numerics.decode_kernels import decode
from analyzers.numerics.formats import FP4_E2M1, e8m0_values

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
# Arguments: tensor, first element, number of elements, byte buffer. Returns the bit patterns.
Read = Callable[[Tensor, int, int, Bytes], NDArray[Any]]

# Values decoded at a time. Their patterns (512 KiB) are counted while still in a core's cache.
PIECE = 1 << 17


class Grid(NamedTuple):
    """How scales cover a weight of (matrices, rows, columns), row-major: one per block of each matrix, partial at the edges."""

    rows: int
    columns: int
    block_rows: int
    block_columns: int
    scale_rows: int
    scale_columns: int

    @classmethod
    def of(cls, tensor: Tensor, scale: Scale) -> "Grid":
        """The grid of ``tensor``; with a single scale, the whole tensor is one matrix and one block."""
        columns = tensor.shape[-1]
        if scale.tensor.elements == 1:
            rows = prod(tensor.shape[:-1])
            return cls(rows, columns, rows, columns, 1, 1)
        rows = tensor.shape[-2] if len(tensor.shape) > 1 else 1
        block_rows, block_columns = scale.block
        return cls(rows, columns, block_rows, block_columns, -(-rows // block_rows), -(-columns // block_columns))

    def scale_of(self, element: int) -> int:
        """Index of the scale of ``element``. It never decreases within a row or from row to row."""
        row, column = divmod(element, self.columns)
        matrix, row = divmod(row, self.rows)
        return (matrix * self.scale_rows + row // self.block_rows) * self.scale_columns + column // self.block_columns

    def span(self, start: int, stop: int) -> tuple[int, int]:
        """First and last + 1 index of the scales of elements ``start`` to ``stop`` - 1."""
        if start // self.columns == (stop - 1) // self.columns:
            return self.scale_of(start), self.scale_of(stop - 1) + 1
        first = self.scale_of(start - start % self.columns)
        return first, self.scale_of((stop - 1) // self.columns * self.columns) + self.scale_columns


def scale_reads(tensor: Tensor) -> int:
    """Number of reads that a short span of ``tensor`` needs in addition to the read of its codes."""
    return 0 if tensor.scale is None else 1 if tensor.scale.factor is None else 2


def stored_bytes(tensor: Tensor, start: int, count: int) -> int:
    """Bytes to read for ``count`` elements of ``tensor`` from ``start`` on, including their scales."""
    if count == 0:
        return 0
    nbytes = -(-(start + count) * tensor.bits // 8) - start * tensor.bits // 8
    if tensor.scale is None:
        return nbytes
    first, last = Grid.of(tensor, tensor.scale).span(start, start + count)
    factor = tensor.scale.factor
    return nbytes + (last - first) * tensor.scale.tensor.itemsize + (factor.nbytes if factor else 0)


def decoded(tensor: Tensor, start: int, count: int, step: int, buffer: Bytes, read: Read) -> Iterator[tuple[int, NDArray[np.uint32]]]:
    """Yield values of ``count`` elements from ``start`` on: (first element, fp32 patterns), valid until the next iteration.

    tensor: has a scale; step: elements to read at a time, for which ``buffer`` is large enough. Pieces are whole rows if a row
    is shorter than a piece, and never cross the end of a longer row.
    """
    assert tensor.scale is not None
    grid = Grid.of(tensor, tensor.scale)
    scales = _Scales(tensor.scale, grid, start + count, buffer.size, read)
    out = np.empty(min(PIECE, count), dtype=np.float32)
    packed = tensor.bits == 4
    codes_of = replace(tensor, dtype="U8", shape=(tensor.nbytes,), scale=None) if packed else tensor
    table = _table("F4" if packed else tensor.dtype)
    end = start + count
    while start < end:
        # A chunk that starts inside a byte, possible only in the smallest samples, is that one element.
        stop = min(start + (1 if packed and start % 2 else step), end)
        first, last = start * tensor.bits // 8, -(-stop * tensor.bits // 8)
        codes = read(codes_of, first, last - first, buffer)
        while start < stop:
            piece = _piece(start, stop, grid.columns)
            base, needed = scales.of(start, piece)
            values = out[: piece - start]
            decode(codes[start * tensor.bits // 8 - first :], start, tuple(grid), needed, base, table, values)
            yield start, values.view(np.uint32)
            start = piece


def _piece(start: int, stop: int, columns: int) -> int:
    """End of the piece that begins at ``start``."""
    column = start % columns
    if column == 0 and columns <= PIECE:
        return min(start + PIECE // columns * columns, stop)
    return min(start + PIECE, start + columns - column, stop)


class _Scales:
    """A sliding window over the scales of a span: at most ``window`` bytes as float32, or as much as a piece needs."""

    def __init__(self, scale: Scale, grid: Grid, stop: int, window: int, read: Read) -> None:
        self._scale, self._grid, self._read = scale, grid, read
        self._last_element = stop
        self._window = max(window // 4, 1)
        self._first, self._values = 0, np.empty(0, dtype=np.float32)
        self._factor: np.float32 | None = None

    def of(self, start: int, stop: int) -> tuple[int, Floats]:
        """(index of the first scale, scales) for the elements ``start`` to ``stop`` - 1 and beyond."""
        first, last = self._grid.span(start, stop)
        if not self._first <= first <= last <= self._first + self._values.size:
            # Decoding is sequential, so everything up to the span's end will be needed.
            end = max(last, min(first + self._window, self._grid.span(start, self._last_element)[1]))
            self._first, self._values = first, self._load(first, end)
        return self._first, self._values

    def _load(self, first: int, last: int) -> Floats:
        scale = self._scale
        values = self._float32(scale.tensor, first, last)
        if scale.factor is None:
            return values
        if self._factor is None:
            self._factor = self._float32(scale.factor, 0, 1)[0]
        with np.errstate(all="ignore"):
            return values / self._factor if scale.divides else values * self._factor

    def _float32(self, tensor: Tensor, first: int, last: int) -> Floats:
        codes = self._read(tensor, first, last - first, np.empty((last - first) * tensor.itemsize, dtype=np.uint8))
        if tensor.dtype == "F32":
            return codes.view(np.float32)
        if tensor.dtype == "F16":
            return codes.view(np.float16).astype(np.float32)
        if tensor.dtype == "BF16":
            return (codes.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return _table(tensor.dtype)[codes]


@cache
def _table(dtype: str) -> Floats:
    """The value of each code: a byte, or half a byte for E2M1. Bytes of non-float dtypes are read as E8M0."""
    if dtype in NARROW:
        return NARROW[dtype].decode().astype(np.float32)
    return (FP4_E2M1.decode() if dtype == "F4" else e8m0_values()).astype(np.float32)
