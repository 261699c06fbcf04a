"""Computes the weights of a base with adapters merged in, W + s B A in fp32, as a file that is read by range and stored nowhere.

Operations and their order are those of peft's ``merge_and_unload`` on weights in fp32: the product of the matrices, times the scale, added
to the weight; with DoRA, the sum times magnitude / norm. A read takes the rows it needs of the base and of B, and A as a whole.
"""

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.checkpoints.adapters.updates import Factor, Indices, Update
from analyzers.checkpoints.quantization.decode import ScaledCodes
from analyzers.checkpoints.reading.elements import read_elements
from analyzers.checkpoints.repository import RangeFile
from analyzers.checkpoints.tensor import Tensor
from analyzers.core import limits
from analyzers.numerics.conversions import fp32_of

Floats = NDArray[np.float32]

_HELD_BYTES = 12 << 20  # Matrices held in fp32, the last ones used.
_PIECE = 1 << 17  # Elements that are computed at a time.
# Threads that read wait for the network; only as many as there are cores compute, so that their intermediate results are few.
_COMPUTING = threading.BoundedSemaphore(limits.cores())
_FEW = 8  # Up to this fraction of the rows of B is read alone.
_ALL = slice(None)
# Rows of a matrix product: those of fewer are computed by other loops, which round differently.
_ROWS = 16
# Multiplications of a matrix product: BLAS computes larger ones with threads of its own, which would compete with those that read.
_ALONE = 1 << 18


@dataclass(frozen=True, slots=True)
class MergedTensor:
    """A tensor whose values are computed. source: its weights before the change; updates: with the number of each one's adapter."""

    source: Tensor
    updates: tuple[tuple[int, Update], ...]

    @property
    def width(self) -> int:
        """The columns of the tensor, taken as a matrix."""
        return self.updates[0][1].width


class MergedFile:
    """The values of ``tensors``, in fp32, concatenated. files: those of the base and, for each adapter, those of the adapter."""

    def __init__(
        self, path: str, tensors: Sequence[MergedTensor], files: Sequence[RangeFile], adapters: Sequence[Sequence[RangeFile]]
    ) -> None:
        self.path = path
        self._tensors = tensors
        self._ends = list(accumulate(4 * tensor.source.elements for tensor in tensors))
        self.size = self._ends[-1] if self._ends else 0
        self._files, self._adapters = files, adapters
        self._held: OrderedDict[tuple[int, str], Floats] = OrderedDict()
        self._held_bytes = 0
        self._norms: dict[int, Floats] = {}
        self._lock = threading.Lock()
        self._locks: dict[object, threading.Lock] = {}

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes from ``offset`` on."""
        while len(buffer):
            number = bisect_right(self._ends, offset)
            nbytes = 4 * self._tensors[number].source.elements
            within = offset - (self._ends[number] - nbytes)
            count = min(len(buffer), nbytes - within)
            start, stop = within // 4, -(-(within + count) // 4)
            with np.errstate(all="ignore"):  # matrices may hold NaN and infinite values
                values = self._values(number, start, stop).view(np.uint8)
            buffer[:count] = values[within - 4 * start : within - 4 * start + count].data
            offset, buffer = offset + count, buffer[count:]

    def close(self) -> None:
        """Close the adapters' files; the base's are the checkpoint's own."""
        for files in self._adapters:
            for file in files:
                file.close()

    def _values(self, number: int, start: int, stop: int) -> Floats:
        """Return elements ``start`` to ``stop`` of tensor ``number``."""
        tensor = self._tensors[number]
        width = tensor.width
        first, last = start // width, -(-stop // width)
        whole = any(update.magnitude is not None and not update.by_column for _, update in tensor.updates)
        if whole or (last - first) * width == stop - start:  # DoRA's norms need whole rows
            rows = read_values(self._files, tensor.source, first * width, last * width).reshape(-1, width)
        else:
            rows = np.zeros((last - first, width), np.float32)
            rows.reshape(-1)[start - first * width : stop - first * width] = read_values(self._files, tensor.source, start, stop)
        self._change_all(number, rows, first)
        return rows.reshape(-1)[start - first * width : stop - first * width]

    def _change_all(self, number: int, rows: Floats, first: int, scaled: bool = True) -> None:
        """Change ``rows``, rows ``first`` on of tensor ``number``, in place. scaled: whether DoRA's norms are applied."""
        step = max(_ROWS, _PIECE // rows.shape[1])
        for at in range(0, len(rows), step):
            piece = rows[at : at + step]
            for adapter, update in self._tensors[number].updates:
                places, chosen = _within(update.rows, first + at, first + at + len(piece))
                left = self.vectors(adapter, update.left, chosen)
                if not len(left):
                    continue
                part = _part(places, update.columns)
                piece[part] += self._product(adapter, left, chosen, update)
                if update.magnitude is not None and scaled:
                    piece[part] = self._renormalized(number, adapter, update, chosen, piece[part])

    def _product(self, adapter: int, left: Floats, chosen: Indices, update: Update) -> Floats:
        """Return the change of some rows: s L R. chosen: the rows of L that ``left`` has."""
        scale = np.float32(update.scale)
        if update.right is None:
            return left * scale
        right = self.vectors(adapter, update.right, _ALL).T
        with _COMPUTING:
            product = _multiplied(left, chosen, right)
            product *= scale
        return product

    def _renormalized(self, number: int, adapter: int, update: Update, chosen: Indices, changed: Floats) -> Floats:
        """Apply DoRA: give each row, or each column, of the sum the norm of its magnitude."""
        assert update.magnitude is not None
        magnitude = self._whole(adapter, update.magnitude).reshape(-1)
        with np.errstate(all="ignore"):
            if not update.by_column:
                norms = np.sqrt(np.square(changed, dtype=np.float64).sum(axis=1)).astype(np.float32)
                factors: Floats = magnitude[_index(update.left.chosen, chosen)] / norms
                return factors[:, None] * changed
            assert update.right is not None
            norms = self._column_norms(number)[update.columns]
            factors = magnitude[update.right.chosen] / norms
            return factors[None, :] * changed

    def _column_norms(self, number: int) -> Floats:
        """Return the norms of the columns of a changed tensor before DoRA: it is read once, as a whole."""
        with self._lock:
            lock = self._locks.setdefault(number, threading.Lock())
        with lock:
            if number not in self._norms:
                tensor = self._tensors[number]
                sums = np.zeros(tensor.width)
                step = max(_ROWS, 4 * _PIECE // tensor.width)
                count = tensor.source.elements // tensor.width
                for first in range(0, count, step):
                    last = min(first + step, count)
                    rows = read_values(self._files, tensor.source, first * tensor.width, last * tensor.width).reshape(-1, tensor.width)
                    self._change_all(number, rows, first, scaled=False)
                    sums += np.square(rows, dtype=np.float64).sum(axis=0)
                self._norms[number] = np.sqrt(sums).astype(np.float32)
            return self._norms[number]

    def vectors(self, adapter: int, factor: Factor, part: Indices) -> Floats:
        """Return vectors ``part`` of a factor, (n, r). Of B, a few rows are read alone."""
        tensor, chosen = factor.tensor, _index(factor.chosen, part)
        if not factor.of_a and factor.ranks == _ALL and isinstance(chosen, slice) and tensor.strides is None and tensor.scale is None:
            wanted = range(tensor.shape[0])[chosen]
            if wanted.step == 1 and len(wanted) * _FEW < tensor.shape[0] and (adapter, tensor.name) not in self._held:
                rank = tensor.elements // tensor.shape[0]
                return read_values(self._adapters[adapter], tensor, wanted.start * rank, wanted.stop * rank).reshape(len(wanted), rank)
        whole = self._whole(adapter, tensor)
        whole = whole.reshape(tensor.shape[0], -1)
        return whole[factor.ranks][:, chosen].T if factor.of_a else whole[chosen][:, factor.ranks]

    def _whole(self, adapter: int, tensor: Tensor) -> Floats:
        """Return all values of an adapter's tensor; the last ones used are held in memory."""
        key = (adapter, tensor.name)
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            values = self._held.get(key)
            if values is None:
                values = read_values(self._adapters[adapter], tensor, 0, tensor.elements)
        with self._lock:
            self._held_bytes += values.nbytes if key not in self._held else 0
            self._held[key] = values
            self._held.move_to_end(key)
            while len(self._held) > 1 and self._held_bytes > _HELD_BYTES:
                self._held_bytes -= self._held.popitem(last=False)[1].nbytes
        return values


def _multiplied(left: Floats, chosen: Indices, right: Floats) -> Floats:
    """Return the product of rows of a matrix and another matrix, computed in tiles of `_ROWS` rows of the whole matrix.

    BLAS may round the rows of a tile differently, so each row has the same place in its tile whichever rows are computed with it.
    chosen: the rows of the whole matrix that ``left`` has.
    """
    count, rank = left.shape
    width = right.shape[1]
    tile = max(_ALONE // (_ROWS * rank) // _ROWS, 1) * _ROWS
    at: Indices
    if isinstance(chosen, np.ndarray):
        tiles, which = np.unique(chosen // _ROWS, return_inverse=True)
        tiled, at = len(tiles), which * _ROWS + chosen % _ROWS
    else:
        first = (chosen.start or 0) % _ROWS
        tiled, at = -(-(first + count) // _ROWS), slice(first, first + count)
    rows = np.zeros((tiled, _ROWS, rank), np.float32)
    rows.reshape(-1, rank)[at] = left
    product = np.empty((len(rows), _ROWS, width), np.float32)
    for first in range(0, width, tile):
        np.matmul(rows, right[:, first : first + tile], out=product[:, :, first : first + tile])
    found: Floats = product.reshape(-1, width)[at]
    return found


def _within(indices: Indices, first: int, last: int) -> tuple[Indices, Indices]:
    """Return which of rows ``first`` to ``last`` are among ``indices``, counted from ``first``, and their positions in ``indices``."""
    if isinstance(indices, np.ndarray):
        at = np.flatnonzero((indices >= first) & (indices < last))
        return indices[at] - first, at
    start, step = indices.start or 0, indices.step or 1
    stop = last if indices.stop is None else min(last, indices.stop)
    begin = max(0, -(-(first - start) // step))
    end = max(begin, -(-(stop - start) // step))
    return slice(start + begin * step - first, max(0, start + end * step - first), step), slice(begin, end)


def _part(rows: Indices, columns: Indices) -> Any:
    """Return the index of a part of a matrix."""
    return np.ix_(rows, columns) if isinstance(rows, np.ndarray) and isinstance(columns, np.ndarray) else (rows, columns)


def _index(indices: Indices, part: Indices) -> Indices:
    """Return ``indices[part]``."""
    if isinstance(indices, np.ndarray):
        return indices[part]
    start, step = indices.start or 0, indices.step or 1
    if isinstance(part, np.ndarray):
        return start + step * part
    if part == _ALL:
        return indices
    return slice(start + step * part.start, start + step * part.stop, step)


def read_values(files: Sequence[RangeFile], tensor: Tensor, start: int, stop: int) -> Floats:
    """Return elements ``start`` to ``stop`` of a tensor in fp32, decoded with its scales if it has any."""

    def fetch(part: Tensor, first: int, count: int, into: NDArray[np.uint8]) -> NDArray[np.generic]:
        return read_elements(files[part.file].read_into, part, first, count, into)

    count = stop - start
    buffer = np.empty(count * max(tensor.bits, 8) // 8 + 1, np.uint8)
    if tensor.scale is not None:
        return ScaledCodes(tensor, start, count, buffer, fetch)[0:count].view(np.float32).copy()
    codes = fetch(tensor, start, count, buffer)
    with _COMPUTING, np.errstate(over="ignore"):
        return codes.view(np.float64).astype(np.float32) if tensor.dtype == "F64" else fp32_of(codes, tensor.dtype).view(np.float32)
