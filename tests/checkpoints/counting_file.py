"""A file in memory that records its reads."""


class MemoryFile:
    """A `RangeFile` over bytes. ``reads`` lists (offset, length) of every read."""

    def __init__(self, data: bytes, path: str = "model.safetensors") -> None:
        self._data = data
        self._path = path
        self.reads: list[tuple[int, int]] = []

    @property
    def path(self) -> str:
        return self._path

    @property
    def size(self) -> int:
        return len(self._data)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        assert 0 <= offset <= offset + len(buffer) <= len(self._data)
        self.reads.append((offset, len(buffer)))
        buffer[:] = self._data[offset : offset + len(buffer)]
