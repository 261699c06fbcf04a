"""A lock between the processes of one machine, which the kernel releases however its holder ends."""

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from analyzers.errors import LibraryUnavailable


@contextmanager
def folder_lock(path: Path, *, shared: bool = False, seconds: float = 0) -> Iterator[bool]:
    """Hold the lock of the file ``path``; yields whether this process got it within ``seconds``.

    ``shared`` locks exclude only locks that are not shared.

    If the mount or the system has no locks, everybody gets it: the guarded work is then merely done twice. Raises LibraryUnavailable if
    the file cannot be created.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        raise LibraryUnavailable("The library's folder cannot be written: set MANTISSA_DATA to another one.") from None
    try:
        end = time.monotonic() + seconds
        held = _lock(descriptor, shared)
        while not held and time.monotonic() < end:
            time.sleep(0.01)
            held = _lock(descriptor, shared)
        yield held
    finally:
        os.close(descriptor)


def _lock(descriptor: int, shared: bool) -> bool:
    try:
        import fcntl

        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except ImportError:
        return True
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
    return True
