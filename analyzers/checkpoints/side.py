"""One side of a paired stream: consecutive elements of one tensor, read in parts as bit patterns."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.checkpoints.decode import decoded
from analyzers.checkpoints.elements import CountedReads, read_elements
from analyzers.checkpoints.repository import RangeFile
from analyzers.checkpoints.tensor import Tensor
from analyzers.checkpoints.workers import Stopped, Tally
from analyzers.errors import MantissaError

Codes = NDArray[Any]


def width(tensor: Tensor) -> int:
    """Bits per element of ``tensor`` in a buffer: as stored, and 32 more for the float32 value of one with scales."""
    return tensor.bits + (32 if tensor.scale is not None else 0)


@dataclass(frozen=True, slots=True)
class Source:
    """Shared by all reads of one checkpoint. name: for errors; tally: of bytes and reads; stop: if set, reads raise Stopped."""

    files: Sequence[RangeFile]
    name: str
    tally: Tally
    stop: threading.Event


class Side:
    """``count`` elements of ``tensor`` from ``start`` on, to be read in order, by one thread at a time.

    step: the most elements per read, unless the side is read ``at_once``; buffer: owned by this side, large enough for one
    read. A result is valid until the next read; it is shorter, or empty, at the end of the elements. Errors of reads begin with
    the name of the source.
    """

    def __init__(self, source: Source, tensor: Tensor, start: int, count: int, step: int, buffer: NDArray[np.uint8]) -> None:
        self._source = source
        self._tensor = tensor
        self._end = start + count
        self._buffer = buffer
        if tensor.scale is not None:
            most = min(step, count)
            self._floats = buffer[: most * 4].view(np.uint32)
            self._rest = self._floats[:0]
            codes = buffer[most * 4 : -(-most * width(tensor) // 8)]
            self._pieces = decoded(tensor, start, count, step, codes, self._fetch)

    @property
    def at_once(self) -> bool:
        """Whether to read more than ``step`` at a time: the byte ranges of parts of a view overlap."""
        return self._tensor.scale is None and self._tensor.strides is not None

    def read(self, start: int, count: int) -> Codes:
        """The patterns of elements ``start`` to ``start + count``, in the buffer."""
        count = max(0, min(count, self._end - start))
        if count == 0:  # the file may end before it
            return self._buffer[:0].view(f"<u{4 if self._tensor.scale is not None else self._tensor.itemsize}")
        try:
            if self._tensor.scale is not None:
                return self._decode(count)
            return self._fetch(self._tensor, start, count, self._buffer)
        except MantissaError as error:
            raise error.about(self._source.name) from None

    def _decode(self, count: int) -> Codes:
        filled = 0
        while filled < count:
            if not self._rest.size:
                _, self._rest = next(self._pieces)
            many = min(count - filled, self._rest.size)
            self._floats[filled : filled + many] = self._rest[:many]
            self._rest = self._rest[many:]
            filled += many
        return self._floats[:count]

    def _fetch(self, tensor: Tensor, start: int, count: int, buffer: NDArray[np.uint8]) -> Codes:
        if self._source.stop.is_set():
            raise Stopped
        file = CountedReads(self._source.files[tensor.file])
        codes = read_elements(file, tensor, start, count, buffer)
        self._source.tally.add(codes.nbytes, file.taken())
        return codes
