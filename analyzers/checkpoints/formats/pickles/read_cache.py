"""Caches small reads of a file: a header, a directory and the bytes between them often take one read."""

from analyzers.checkpoints.repository import RangeFile, read_range


class ReadCache:
    """A file with cached ranges; reads within them are served from memory."""

    def __init__(self, file: RangeFile) -> None:
        self.file = file
        self._held: list[tuple[int, bytes]] = []

    def read(self, start: int, length: int) -> bytes:
        """Return ``length`` bytes from ``start`` on, which must be within the file. Does not cache them."""
        for first, data in self._held:
            if first <= start and start + length <= first + len(data):
                return data[start - first : start - first + length]
        return read_range(self.file, start, length)

    def keep(self, start: int, length: int) -> bytes:
        """Read like `read`, and cache the bytes."""
        data = self.read(start, length)
        self._held.append((start, data))
        return data
