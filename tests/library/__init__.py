"""Tests of the library."""

DATASET = "org/library"
TOKEN = "hf_" + "canaryCANARY" * 3


class Bytes:
    """A file in memory as a `RangeFile`."""

    def __init__(self, path: str, content: bytes) -> None:
        self.path = path
        self.size = len(content)
        self._content = memoryview(content)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Copy bytes from memory into ``buffer``."""
        buffer[:] = self._content[offset : offset + len(buffer)]

    def close(self) -> None:
        """Do nothing, since there is nothing to free."""
