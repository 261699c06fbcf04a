"""Computes the weights of a base with adapters merged in, W + s B A in fp32, as a file that is read by range and stored nowhere.

As peft's ``merge_and_unload`` on weights in fp32, but for the sum, which is taken in fp64 and rounded once; with DoRA, the sum times
magnitude / norm. A read takes whole rows of the base, and the matrices of its tensors.
"""

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from analyzers.checkpoints.adapters.updates import Update
from analyzers.checkpoints.elements import file_of, read_elements
from analyzers.checkpoints.repository import RangeFile
from analyzers.checkpoints.tensor import Tensor
from analyzers.core import limits
from analyzers.numerics.conversions import fp32_of

Floats = NDArray[np.float32]

_HELD_BYTES = 12 << 20  # Matrices held in fp32, the last ones used.
# Threads that read wait for the network; only as many as there are cores compute, so that their intermediate results are few.
_COMPUTING = threading.BoundedSemaphore(limits.cores())


@dataclass(frozen=True, slots=True)
class MergedTensor:
    """A tensor whose values are computed. source: its weights before the change; updates: with the number of each one's adapter."""

    source: Tensor
    updates: tuple[tuple[int, Update], ...]


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
            tensor = self._tensors[number]
            row = 4 * (tensor.source.elements // tensor.source.shape[0])
            within = offset - (self._ends[number] - 4 * tensor.source.elements)
            count = min(len(buffer), 4 * tensor.source.elements - within)
            first, last = within // row, -(-(within + count) // row)
            with np.errstate(all="ignore"):  # matrices may hold NaN and infinite values
                values = self._rows(tensor, first, last).reshape(-1).view(np.uint8)
            buffer[:count] = values[within - first * row : within - first * row + count].data
            offset, buffer = offset + count, buffer[count:]

    def _rows(self, tensor: MergedTensor, first: int, last: int) -> Floats:
        """Return rows ``first`` to ``last`` of a tensor, (rows, width)."""
        width = tensor.source.elements // tensor.source.shape[0]
        rows = read_values(self._files, tensor.source, first * width, last * width).reshape(-1, width)
        for adapter, update in tensor.updates:
            a, b = (self._whole(adapter, matrix) for matrix in (update.module.a, update.module.b))
            left, right = (a.T, b.T) if update.transposed else (b, a)
            with _COMPUTING:
                # The sum is that of fp64 rounded to fp32: the same, whichever rows are computed together
                rows += left[first:last].astype(np.float64) @ (right * np.float64(update.scale))
                if update.module.magnitude is not None:
                    magnitude = self._whole(adapter, update.module.magnitude).reshape(-1, 1)[first:last]
                    norms = np.sqrt(np.square(rows, dtype=np.float64).sum(axis=1, keepdims=True)).astype(np.float32)
                    rows *= magnitude / norms
        return rows

    def _whole(self, adapter: int, tensor: Tensor) -> Floats:
        """Return all values of an adapter's tensor as a matrix; the last ones used are held in memory."""
        key = (adapter, tensor.name)
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
                return self._held[key]
        values = read_values(self._adapters[adapter], tensor, 0, tensor.elements).reshape(tensor.shape[0], -1)
        with self._lock:
            self._held[key] = values
            while len(self._held) > 1 and sum(each.nbytes for each in self._held.values()) > _HELD_BYTES:
                self._held.popitem(last=False)
        return values


def read_values(files: Sequence[RangeFile], tensor: Tensor, start: int, stop: int) -> Floats:
    """Return elements ``start`` to ``stop`` of a tensor in fp32."""
    buffer = np.empty((stop - start) * tensor.itemsize, np.uint8)
    decoded = None if tensor.stored is None else tensor.stored.file
    read_box = None if decoded is None else decoded.read_box
    codes = read_elements(file_of(files, tensor).read_into, tensor, start, stop - start, buffer, read_box)
    with _COMPUTING:
        return fp32_of(codes, tensor.dtype).view(np.float32)
