"""Serves the library as files at fixed addresses: written on request, and again only after the library has changed."""

import errno
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from analyzers.core.errors import LibraryUnavailable
from components.library import Counts, Library

TYPES = {"parquet": "application/vnd.apache.parquet", "csv": "text/csv; charset=utf-8", "jsonl": "application/x-ndjson"}
# Files of 100,000 rows take seconds to write. A file that took more than _LONG_SECONDS is reused for _TIMES as long, even if outdated.
_LONG_SECONDS = 0.5
_TIMES = 20.0


class Exports:
    """The newest file of each kind and format. Safe to use from several threads; one writes while the others wait."""

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._files: dict[tuple[str, str], tuple[float, Counts, Path]] = {}
        self._lock = threading.Lock()

    def path(self, library: Library, kind: str, form: str) -> Path:
        """Return the file of one of the library's `FILES`. Raises LibraryUnavailable if it cannot be written."""
        with self._lock, _advice():
            counts, started = library.counts(), time.monotonic()
            if (kind, form) in self._files:
                fresh_until, of, path = self._files[kind, form]
                if of == counts or started < fresh_until:
                    return path
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(prefix="mantissa-exports-", ignore_cleanup_errors=True)
            path = library.export(Path(self._folder.name), kind, form)  # replaces the file; a transfer of the old one continues
            taken = time.monotonic() - started
            self._files[kind, form] = started + (_TIMES * taken if taken > _LONG_SECONDS else 0.0), counts, path
            return path

    def close(self) -> None:
        """Delete the files. Idempotent."""
        with self._lock:
            if self._folder is not None:
                self._folder.cleanup()
            self._folder = None
            self._files.clear()


@contextmanager
def _advice() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = "is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "cannot be written"
        raise LibraryUnavailable(f"The file cannot be written: the disk for temporary files (TMPDIR) {why}.") from None
