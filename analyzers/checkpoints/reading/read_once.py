"""Reads once what two sides of a comparison share, or several passes over a sample read of the same checkpoints, over a network."""

import threading
from bisect import bisect_right
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

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._file.close()


def read_once(files: Sequence[RangeFile]) -> tuple[RangeFile, ...]:
    """Return the files of one checkpoint such that each thread repeats its last read from memory."""
    last = threading.local()
    return tuple(ReadOnce(file, last) for file in files)


class Kept:
    """The content of ranges that were read, up to ``most`` bytes. Safe to use from several threads.

    longest: of the ranges that are kept; nbytes: that are kept.
    """

    def __init__(self, most: int, longest: int | None = None) -> None:
        self.nbytes, self._most, self._longest, self._lock = 0, most, most if longest is None else longest, threading.Lock()
        self._content: dict[int, tuple[list[int], list[bytes]]] = {}  # of each file, by its identity: the offsets, ascending, and the bytes

    def files(self, files: Sequence[RangeFile]) -> tuple[RangeFile, ...]:
        """Return the files of a checkpoint such that a range is read once."""
        return tuple(KeptFile(file, self) for file in files)

    def read_into(self, file: RangeFile, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes of a file from ``offset`` on: from the last range that begins there or before, or by a read."""
        with self._lock:
            offsets, contents = self._content.setdefault(id(file), ([], []))
            at = bisect_right(offsets, offset) - 1
            start, content = (offsets[at], contents[at]) if at >= 0 else (0, b"")
        if offset + len(buffer) <= start + len(content):
            buffer[:] = content[offset - start : offset - start + len(buffer)]
            return
        file.read_into(offset, buffer)
        with self._lock:
            if len(buffer) <= self._longest and self.nbytes + len(buffer) <= self._most:
                at = bisect_right(offsets, offset)
                offsets.insert(at, offset)
                contents.insert(at, bytes(buffer))
                self.nbytes += len(buffer)

    def stop(self) -> None:
        """Forget everything, and keep nothing any more."""
        with self._lock:
            self._content, self._most, self.nbytes = {}, 0, 0


class KeptFile:
    """A file of which what was read is held in memory."""

    def __init__(self, file: RangeFile, kept: Kept) -> None:
        self._file, self._kept = file, kept
        self.path, self.size = file.path, file.size

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes from ``offset`` on."""
        self._kept.read_into(self._file, offset, buffer)

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._file.close()
