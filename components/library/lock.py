"""A lock among the processes of one machine, which the kernel gives back however its holder ends."""

import errno
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from analyzers.errors import LibraryUnavailable


class FolderLock:
    """The lock of a file. Where the mount or the system has no locks, everybody gets it: what it guards is only done twice then.

    Raises LibraryUnavailable where the file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            raise LibraryUnavailable("The library's folder cannot be written: name another one (MANTISSA_DATA).") from None
        self._open = True

    def take(self) -> bool:
        """Try to take it, without waiting."""
        try:
            import fcntl

            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:
            return True
        except OSError as error:
            return error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
        return True

    def close(self) -> None:
        """Give it back. Idempotent."""
        if self._open:
            self._open = False
            os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
