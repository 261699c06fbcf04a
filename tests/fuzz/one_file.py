"""A repository of one file in memory, for readers of data."""

from tests.checkpoints.counting_file import MemoryFile


class OneFile:
    """The file under its own path."""

    ref, commit = "memory", ""

    def __init__(self, file: MemoryFile) -> None:
        self._file = file
        self.files = {file.path: file.size}

    def open(self, path: str) -> MemoryFile:
        """Open the file."""
        return self._file
