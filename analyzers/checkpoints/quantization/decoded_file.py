"""The values of a checkpoint's quantized tensors, in fp32, as a file that is read by range and stored nowhere."""

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.checkpoints.elements import read_elements
from analyzers.checkpoints.quantization.quantized import SMALL_BYTES, Field, Quantized, Run
from analyzers.checkpoints.repository import RangeFile
from analyzers.checkpoints.tensor import Tensor

# Fills a buffer with the bytes of a stored file from an offset on.
ReadStored = Callable[[RangeFile, int, memoryview], None]

_PIECE = 1 << 17  # Values decoded at a time, which still fit a core's cache.
_HELD_BYTES = 8 << 20  # Small parts held in memory, the last ones used.


class DecodedFile:
    """The values of quantized tensors, in fp32, each from its `Quantized.offset` on. files: those that hold what they are computed from."""

    path = "decoded weights"

    def __init__(self, files: Sequence[RangeFile]) -> None:
        self._files, self.size = files, 0
        self._tensors, self._offsets = list[Quantized](), list[int]()
        self._last = threading.local()
        self._held: OrderedDict[tuple[object, ...], NDArray[Any]] = OrderedDict()
        self._held_bytes = 0
        self._lock = threading.Lock()

    def add(self, tensor: Quantized) -> None:
        """Append the values of a tensor, whose offset is the size so far."""
        self._tensors.append(tensor)
        self._offsets.append(tensor.offset)
        self.size += 4 * tensor.elements

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes from ``offset`` on."""
        self.read_field("value", offset, buffer)

    def read_field(self, field: Field, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` as `read_into` does, with another number of each value than itself."""
        self.decode_into(lambda file, at, piece: file.read_into(at, piece), offset, buffer, field)

    def decode_into(self, read_stored: ReadStored, offset: int, buffer: memoryview, field: Field = "value") -> None:
        """Fill ``buffer`` like `read_field`, where ``read_stored`` reads the stored files."""
        while len(buffer):
            tensor = self._tensors[bisect_right(self._offsets, offset) - 1]
            at = offset - tensor.offset
            count = min(len(buffer), 4 * tensor.elements - at)
            first, stop = at // 4, -(-(at + count) // 4)
            run = self._run(read_stored, tensor, first, stop)
            whole = at % 4 == count % 4 == 0
            values = np.frombuffer(buffer[:count], np.float32) if whole else np.empty(stop - first, np.float32)
            for start in range(first, stop, _PIECE):
                end = min(start + _PIECE, stop)
                tensor.compute(field, run, start, end, values[start - first : end - first])
            if not whole:
                buffer[:count] = values.view(np.uint8)[at - 4 * first :][:count].data
            offset, buffer = offset + count, buffer[count:]

    def close(self) -> None:
        """Do nothing: the stored files are the checkpoint's own."""

    def _run(self, read_stored: ReadStored, tensor: Quantized, first: int, stop: int) -> Run:
        """Return what elements ``first`` to ``stop`` - 1 are computed from; each thread holds the last."""
        last: tuple[Quantized, Run] | None = getattr(self._last, "run", None)
        if last is not None and last[0] is tensor and last[1].first <= first and stop <= last[1].stop:
            return last[1]
        run = tensor.load(lambda part, start, count: self._read(read_stored, part, start, count), first, stop)
        self._last.run = tensor, run
        return run

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
