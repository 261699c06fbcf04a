"""Caches small reads of a file: its first bytes tell its format, and header and directory often take one read."""

from analyzers.checkpoints.repository import RangeFile, read_range


class ReadCache:
    """A file with cached ranges; reads within them are served from memory."""

    def __init__(self, file: RangeFile) -> None:
        self.path, self.size = file.path, file.size
        self._file = file
        self._held: list[tuple[int, bytes]] = []

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Read as `RangeFile.read_into`. Does not cache the bytes."""
        for first, data in self._held:
            if first <= offset and offset + len(buffer) <= first + len(data):
                buffer[:] = data[offset - first : offset - first + len(buffer)]
                return
        self._file.read_into(offset, buffer)

    def read(self, start: int, length: int) -> bytes:
        """Return ``length`` bytes from ``start`` on, which must be within the file."""
        return read_range(self, start, length)

    def keep(self, start: int, length: int) -> bytes:
        """Read like `read`, and cache the bytes."""
        data = self.read(start, length)
        self._held.append((start, data))
        return data

    def close(self) -> None:
        """Free the file's resources. Idempotent."""
        self._file.close()
