"""The values of a checkpoint's quantized tensors, in fp32, as a file that is read by range and stored nowhere."""

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.checkpoints.elements import read_elements
from analyzers.checkpoints.quantization.quantized import PIECE, SMALL_BYTES, Field, Floats, Quantized, Run
from analyzers.checkpoints.repository import RangeFile, ReadStored
from analyzers.checkpoints.tensor import Tensor
from analyzers.core import limits

_TURNED_BYTES = 32 << 20  # Codes of one matrix that is read in another orientation.
_HELD_BYTES = 8 << 20  # Small parts held in memory, the last ones used.


def read_stored(file: RangeFile, offset: int, buffer: memoryview) -> None:
    """Fill ``buffer`` with the bytes of a stored file from ``offset`` on."""
    file.read_into(offset, buffer)


class DecodedFile:
    """The values of quantized tensors, in fp32, each from its `Quantized.offset` on. files: those that hold what they are computed from."""

    path = "decoded weights"

    def __init__(self, files: Sequence[RangeFile]) -> None:
        self._files, self.size = files, 0
        self._tensors, self._offsets = list[Quantized](), list[int]()
        self._last = threading.local()
        self._held: OrderedDict[tuple[object, ...], NDArray[Any]] = OrderedDict()
        self._held_bytes = 0
        self._turned = list[tuple[Quantized, Run]]()
        self._lock, self._turning = threading.Lock(), threading.Lock()

    def add(self, tensor: Quantized) -> None:
        """Append the values of a tensor, whose offset is the size so far."""
        self._tensors.append(tensor)
        self._offsets.append(tensor.offset)
        self.size += 4 * tensor.elements

    def read_into(self, offset: int, buffer: memoryview, read_stored: ReadStored = read_stored, field: Field = "value") -> None:
        """Fill ``buffer`` with whole values of one tensor, or with another field of them. read_stored: reads the stored files."""
        tensor, values = self._tensors[bisect_right(self._offsets, offset) - 1], np.frombuffer(buffer, np.float32)
        first = (offset - tensor.offset) // 4
        stop = first + values.size
        run = self._run(read_stored, tensor, first, stop, field)
        for start in range(first, stop, PIECE):
            end = min(start + PIECE, stop)
            tensor.compute(run, start, end, values[start - first : end - first])

    def read_box(
        self, offset: int, strides: tuple[int, ...], out: NDArray[Any], read_stored: ReadStored = read_stored, field: Field = "value"
    ) -> bool:
        """Fill ``out`` with values of the same columns of consecutive rows, or with these turned; return False for any other box.

        Only these columns are decoded. Codes of up to `_TURNED_BYTES` are read once for all boxes of a tensor that span most of its rows.
        """
        tensor = self._tensors[bisect_right(self._offsets, offset) - 1]
        columns = tensor.shape[2]
        row, column = divmod((offset - tensor.offset) // 4, columns)
        if not tensor.has_columns or sorted(strides) != [1, columns] or column + out.shape[strides.index(1)] > columns:
            return False
        box = (out if strides[1] == 1 else out.T).view(np.float32)
        whole = tensor.codes.nbytes <= _TURNED_BYTES and 8 * len(box) * columns >= 7 * tensor.elements
        rows = len(box) if whole else max(1, limits.CHUNK_BYTES * 8 // (columns * tensor.bits))
        for start in range(0, len(box), rows):
            part = box[start : start + rows]
            if whole:
                run = self._turned_run(read_stored, tensor).of(field)
            else:
                run = self._run(read_stored, tensor, (row + start) * columns, (row + start + len(part)) * columns, field)
            tensor.compute_columns(run, row + start, column, part)
        return True

    def close(self) -> None:
        """Do nothing: the stored files are the checkpoint's own."""

    def _run(self, read_stored: ReadStored, tensor: Quantized, first: int, stop: int, field: Field) -> Run:
        """Return what a field of elements ``first`` to ``stop`` - 1 is computed from; each thread holds the last."""
        held, run = getattr(self._last, "run", (None, None))
        if run is None or held is not tensor or first < run.first or run.stop < stop:
            run = tensor.load(partial(self._read, read_stored), first, stop)
        if field != "value":
            run = tensor.with_parts(run)
        self._last.run = tensor, run
        return run.of(field)

    def _turned_run(self, read_stored: ReadStored, tensor: Quantized) -> Run:
        """Return what all values of a tensor are computed from; the last two are held, for all threads."""
        with self._turning:
            found = next((run for held, run in self._turned if held is tensor), None)
            if found is None:
                found = tensor.load(partial(self._read, read_stored), 0, tensor.elements)
                self._turned = [*self._turned[-1:], (tensor, found)]
        return found

    def _read(self, read_stored: ReadStored, part: Tensor, first: int, count: int) -> NDArray[Any]:
        """Read elements of a stored tensor; a small one is read whole, once."""

        def read(start: int, number: int) -> NDArray[Any]:
            buffer, file = np.empty(number * part.itemsize, np.uint8), self._files[part.file]
            return read_elements(lambda offset, piece: read_stored(file, offset, piece), part, start, number, buffer)

        if part.nbytes > SMALL_BYTES:
            return read(first, count)
        key = part.file, part.offset, part.dtype, part.strides
        with self._lock:
            held = self._held.get(key)
            if held is not None:
                self._held.move_to_end(key)
        if held is None:
            held = read(0, part.elements)
            with self._lock:
                self._held_bytes += 0 if key in self._held else held.nbytes
                self._held[key] = held
                while self._held_bytes > _HELD_BYTES:
                    self._held_bytes -= self._held.popitem(last=False)[1].nbytes
        return held[first : first + count]


def read_field(tensor: Tensor, name: Field, start: int, count: int) -> Floats:
    """Return what elements ``start`` to ``start + count`` of a tensor with ``stored``, or of a view, are computed from.

    NaN without a uniform grid (GGUF's i-quants). What the same thread has just read of the tensor is not read again.
    """
    file, buffer = tensor.stored and tensor.stored.file, np.empty(4 * count, np.uint8)
    assert isinstance(file, DecodedFile)
    codes = read_elements(partial(file.read_into, field=name), tensor, start, count, buffer, partial(file.read_box, field=name))
    return codes.view(np.float32)
