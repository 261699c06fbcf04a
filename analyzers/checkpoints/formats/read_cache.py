"""Reads a file by range as a file object, with ranges that are kept: header and directory often take one read."""

import io
from typing import Any

from analyzers.checkpoints.formats.faults import Excess
from analyzers.checkpoints.repository import RangeFile, read_range


class ReadCache(io.RawIOBase):
    """A file object over a `RangeFile`. Reads within kept ranges are served from memory.

    most: bytes that may be read as a file object; no more are allocated, whatever a file says about itself.
    """

    def __init__(self, file: RangeFile, most: int) -> None:
        self.size = file.size
        self.most = most
        self._file, self._at = file, 0
        self._kept: list[tuple[int, memoryview]] = []

    def keep(self, start: int, stop: int) -> None:
        """Read from ``start`` up to ``stop`` or the end of the file, and keep the bytes."""
        self._kept.append((start, memoryview(self.bytes_at(start, min(stop, self.size) - start))))

    def bytes_at(self, start: int, length: int) -> bytes:
        """Return ``length`` bytes from ``start`` on, which must be within the file."""
        held = self._held(start)
        return bytes(held[:length]) if len(held) >= length else read_range(self._file, start, length)

    def read(self, size: int = -1) -> bytes:
        left = self.size - self._at
        data = self.bytes_at(self._at, self._spend(left if size < 0 else min(size, left)))
        self._at += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        held = self._held(self._at)
        length = self._spend(min(len(buffer), len(held) or self.size - self._at))
        if held:
            buffer[:length] = held[:length]
        elif length:
            self._file.read_into(self._at, memoryview(buffer)[:length])
        self._at += length
        return length

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = min(max(0, offset + (0, self._at, self.size)[whence]), self.size)
        return self._at

    def _spend(self, length: int) -> int:
        self.most -= length
        if self.most < 0:
            raise Excess("has a header, a pickle or a zip directory that is too long to be read.")
        return length

    def _held(self, start: int) -> memoryview:
        """Return the kept bytes from ``start`` on, none if that byte is not kept."""
        return next((data[start - first :] for first, data in self._kept if first <= start < first + len(data)), memoryview(b""))
