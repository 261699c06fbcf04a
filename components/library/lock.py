"""A lock between the processes of one machine, which the kernel releases however its holder ends."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from analyzers.errors import LibraryUnavailable


@contextmanager
def folder_lock(path: Path) -> Iterator[bool]:
    """Hold the lock of the file ``path``; yields whether this process got it, without waiting.

    If the mount or the system has no locks, everybody gets it: the guarded work is then merely done twice. Raises LibraryUnavailable if
    the file cannot be created.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        raise LibraryUnavailable("The library's folder cannot be written: set MANTISSA_DATA to another one.") from None
    try:
        yield _lock(descriptor)
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:
        return True
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
    return True
