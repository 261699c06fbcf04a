"""Small reads of a file, kept: a header, a directory and what lies between are often within one read."""

from analyzers.checkpoints.repository import RangeFile, read_range


class Pieces:
    """What has been read of a file; a read within it costs nothing."""

    def __init__(self, file: RangeFile) -> None:
        self.file = file
        self._held: list[tuple[int, bytes]] = []

    def read(self, start: int, length: int) -> bytes:
        """``length`` bytes from ``start`` on, which must be within the file. Not kept."""
        for first, data in self._held:
            if first <= start and start + length <= first + len(data):
                return data[start - first : start - first + length]
        return read_range(self.file, start, length)

    def keep(self, start: int, length: int) -> bytes:
        """The same, and kept for later reads."""
        data = self.read(start, length)
        self._held.append((start, data))
        return data
