"""A lock between the processes of one machine, which the kernel releases however its holder ends."""

import errno
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from analyzers.errors import LibraryUnavailable


class FolderLock:
    """A lock file. If the mount or the system has no locks, everybody gets it: the guarded work is then merely done twice.

    Raises LibraryUnavailable if the file cannot be created.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            raise LibraryUnavailable("The library's folder cannot be written: set MANTISSA_DATA to another one.") from None
        self._open = True

    def take(self) -> bool:
        """Try to acquire it, without waiting."""
        try:
            import fcntl

            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:
            return True
        except OSError as error:
            return error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
        return True

    def close(self) -> None:
        """Release it. Idempotent."""
        if self._open:
            self._open = False
            os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
