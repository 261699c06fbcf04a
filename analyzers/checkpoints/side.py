"""One side of a paired stream: a run of elements of one tensor, handed over part after part as patterns."""

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
    """Bits that an element of ``tensor`` takes in a buffer: as stored and, where scales make its value, as float32 beside that."""
    return tensor.bits + (32 if tensor.scale is not None else 0)


@dataclass(frozen=True, slots=True)
class Source:
    """What all reads of one checkpoint share. name: what errors call it; tally: of what is read; stop: makes reads raise Stopped."""

    files: Sequence[RangeFile]
    name: str
    tally: Tally
    stop: threading.Event


class Side:
    """``count`` elements of ``tensor`` from ``start`` on, to be asked for in order, by one thread at a time.

    step: the most elements asked for at a time of a side that is not read ``at_once``; buffer: this side's own, with room
    for what is asked for. What is handed over is valid until the next part is asked for; it is short, or empty, where the run
    ends. Errors of reads begin with the name of the source.
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
        """Whether more than ``step`` should be asked for at a time, as of a view, whose parts overlap."""
        return self._tensor.scale is None and self._tensor.strides is not None

    def read(self, start: int, count: int) -> Codes:
        """The patterns of elements ``start`` to ``start + count``, in the buffer."""
        count = max(0, min(count, self._end - start))
        if count == 0:  # there may be no such place in the file
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
