"""Reads once over a network what two sides of a comparison share."""

import threading
from collections.abc import Sequence

from analyzers.checkpoints.repository import RangeFile


class ReadOnce:
    """A file whose last read of each thread is held in memory: a chunk of one side is read right after that of the other."""

    def __init__(self, file: RangeFile, last: threading.local) -> None:
        self._file, self._last = file, last
        self.path, self.size = file.path, file.size

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes from ``offset`` on."""
        wanted = (self.path, offset, len(buffer))
        if getattr(self._last, "wanted", None) != wanted:
            self._file.read_into(offset, buffer)
            self._last.wanted, self._last.content = wanted, bytes(buffer)
        else:
            buffer[:] = self._last.content


def read_once(files: Sequence[RangeFile]) -> tuple[RangeFile, ...]:
    """Return the files of one checkpoint such that each thread repeats its last read from memory."""
    last = threading.local()
    return tuple(ReadOnce(file, last) for file in files)
