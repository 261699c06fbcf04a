"""Writes files and folders as a whole or not at all: in a hidden folder next to the target, ``.NAME.RANDOM.part``, then renamed."""

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path at which to write a file or a folder. It is moved to ``path`` when the block ends, and deleted if that raises.

    An existing file is replaced and keeps its permissions; a link stays, and leads to the new file; a device is written to directly. After
    a power failure either the old or the new file exists, complete. Raises OSError with the name of ``path``.
    """
    path = Path(os.path.realpath(path))
    old = path.stat().st_mode if path.exists() else None
    if old is not None and not stat.S_ISREG(old) and not stat.S_ISDIR(old):
        yield path
        return
    prefix = f".{path.name[:50]}."  # a file name has at most 255 bytes
    try:
        folder = Path(tempfile.mkdtemp(prefix=prefix, suffix=".part", dir=path.parent))
        try:
            yield (made := folder / path.name)
            if old is not None and made.is_file():
                made.chmod(stat.S_IMODE(old))
            for each in (*made.rglob("*"), made):
                _sync(each)
            made.replace(path)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        if str(error.filename).startswith(str(path.parent / prefix)):
            error.filename = str(path)  # as the user knows it
        raise
    with suppress(OSError):  # the file is complete even if this fails
        _sync(path.parent)


def try_to_write(path: Path) -> None:
    """Write an empty file as `replacing` does and delete it, without a change at ``path``. Raises OSError where it would, if not full."""
    path = Path(os.path.realpath(path))
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not path.exists() or path.is_file():  # nothing is tried on a device
        with tempfile.TemporaryDirectory(prefix=".", suffix=".part", dir=path.parent) as folder:
            Path(folder, path.name).touch()


def append_line(path: Path, line: str) -> None:
    """Append ``line``, all of it or nothing. A line that a killed process left unfinished is ended first. Raises OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        size = os.fstat(descriptor).st_size
        data = f"{line}\n".encode()
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            data = b"\n" + data
        try:
            while data:
                data = data[os.write(descriptor, data) :]
        except BaseException:
            with suppress(OSError):  # only regular files can be truncated
                os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)
    _sync(path)


def _sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # devices and some mounts' folders cannot be flushed
            raise
    finally:
        os.close(descriptor)
