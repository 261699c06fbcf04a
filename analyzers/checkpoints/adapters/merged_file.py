"""Computes the weights of a base with adapters merged in, W + s B A in fp32, as a file that is read by range and stored nowhere.

Operations and their order are those of peft's ``merge_and_unload`` on weights in fp32: the product of the matrices, times the scale, added
to the weight; with DoRA, the sum times magnitude / norm. A read takes whole rows of the base, and the matrices of its tensors.
"""

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from analyzers.checkpoints.adapters.updates import Update
from analyzers.checkpoints.quantization.decode import ScaledCodes
from analyzers.checkpoints.reading.elements import read_elements
from analyzers.checkpoints.repository import RangeFile
from analyzers.checkpoints.tensor import Tensor
from analyzers.core import limits
from analyzers.numerics.conversions import fp32_of

Floats = NDArray[np.float32]

_HELD_BYTES = 12 << 20  # Matrices held in fp32, the last ones used.
# Threads that read wait for the network; only as many as there are cores compute, so that their intermediate results are few.
_COMPUTING = threading.BoundedSemaphore(limits.cores())
# Rows of a tile of a matrix product. BLAS may round the rows of a tile differently, so each row has the same place in its tile whichever
# rows are computed with it.
_ROWS = 16


@dataclass(frozen=True, slots=True)
class MergedTensor:
    """A tensor whose values are computed. source: its weights before the change; updates: with the number of each one's adapter."""

    source: Tensor
    updates: tuple[tuple[int, Update], ...]

    @property
    def width(self) -> int:
        """The columns of the tensor, taken as a matrix: of a stack of experts, one below the other."""
        stacked = self.updates[0][1].module.experts > 1
        return self.source.shape[-1] if stacked else self.source.elements // self.source.shape[0]


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
        self._lock = threading.Lock()

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes from ``offset`` on."""
        while len(buffer):
            number = bisect_right(self._ends, offset)
            nbytes = 4 * self._tensors[number].source.elements
            within = offset - (self._ends[number] - nbytes)
            count = min(len(buffer), nbytes - within)
            first, last = within // (row := 4 * self._tensors[number].width), -(-(within + count) // row)
            with np.errstate(all="ignore"):  # matrices may hold NaN and infinite values
                values = self._rows(self._tensors[number], first, last).reshape(-1).view(np.uint8)
            buffer[:count] = values[within - first * row : within - first * row + count].data
            offset, buffer = offset + count, buffer[count:]

    def close(self) -> None:
        """Close the adapters' files; the base's are the checkpoint's own."""
        for files in self._adapters:
            for file in files:
                file.close()

    def _rows(self, tensor: MergedTensor, first: int, last: int) -> Floats:
        """Return rows ``first`` to ``last`` of a tensor, (rows, width)."""
        width = tensor.width
        rows = read_values(self._files, tensor.source, first * width, last * width).reshape(-1, width)
        for adapter, update in tensor.updates:
            for left, right, top in self._factors(adapter, update, first, last):
                start, stop = max(first, top), min(last, top + len(left))
                part = rows[start - first : stop - first]
                with _COMPUTING:
                    part += product(left, right, start - top, stop - top) * np.float32(update.scale)
                if update.module.magnitude is not None:
                    magnitude = self._whole(adapter, update.module.magnitude).reshape(-1, 1)[start:stop]
                    norms = np.sqrt(np.square(part, dtype=np.float64).sum(axis=1, keepdims=True)).astype(np.float32)
                    part[:] = magnitude / norms * part
        return rows

    def _factors(self, adapter: int, update: Update, first: int, last: int) -> Iterator[tuple[Floats, Floats, int]]:
        """Yield L, R and a row of the tensor, from which on it changes by s L R: once, or for each expert in rows ``first`` to ``last``."""
        module = update.module
        a, b = (self._whole(adapter, each) for each in (module.a, module.b))
        a, b = a.reshape(len(a), -1), b.reshape(len(b), -1)
        height = update.source.shape[-2] if module.experts > 1 else last
        for expert in range(first // height, -(-last // height)) if module.experts > 1 else (0,):
            own, theirs = a[expert * module.rank : (expert + 1) * module.rank], b[:, expert :: module.experts]
            yield (*((own.T, theirs.T) if update.transposed else (theirs, own)), expert * height)

    def _whole(self, adapter: int, tensor: Tensor) -> Floats:
        """Return all values of an adapter's tensor in its shape; the last ones used are held in memory."""
        key = (adapter, tensor.name)
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
                return self._held[key]
        values = read_values(self._adapters[adapter], tensor, 0, tensor.elements).reshape(tensor.shape)
        with self._lock:
            self._held[key] = values
            while len(self._held) > 1 and sum(each.nbytes for each in self._held.values()) > _HELD_BYTES:
                self._held.popitem(last=False)
        return values


def product(left: Floats, right: Floats, first: int, last: int) -> Floats:
    """Return rows ``first`` to ``last`` of the product of two matrices, computed in tiles of `_ROWS` rows of the whole."""
    start, stop = first // _ROWS * _ROWS, -(-last // _ROWS) * _ROWS
    rows = np.zeros((stop - start, left.shape[1]), np.float32)
    rows[: len(left[start:stop])] = left[start:stop]
    tiles: Floats = np.matmul(rows.reshape(-1, _ROWS, rows.shape[1]), right)
    return tiles.reshape(stop - start, -1)[first - start : last - start]


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
