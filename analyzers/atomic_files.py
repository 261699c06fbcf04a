"""Writes files and folders as a whole or not at all.

Each is made in a hidden folder next to its target, ``.NAME.RANDOM.part``, and gets its name once all of it is on disk. The process holds a
lock in that folder while it lives: an unlocked folder was left behind by a killed process, and is deleted by the next run that writes to
the same place.
"""

import errno
import fcntl
import logging
import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from analyzers.terminal import printable

_LOCK = "mantissa.lock"
# Some network mounts do not show the locks of other hosts: a folder made under another kernel must also have been untouched for this long.
_UNTOUCHED_SECONDS = 24 * 3600
_log = logging.getLogger("mantissa")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path at which to write a file or a folder. It is moved to ``path`` when the block ends, and deleted if that raises.

    An existing file is replaced and keeps its permissions; a link stays, and leads to the new file; a device is written to directly. After
    a power failure either the old or the new file exists, complete. Raises OSError.
    """
    path = Path(os.path.realpath(path))
    old = path.stat().st_mode if path.exists() else None
    if old is not None and not stat.S_ISREG(old) and not stat.S_ISDIR(old):
        yield path
        return
    with _part(path.parent, path.name) as made:
        yield made
        if old is not None and made.is_file():
            made.chmod(stat.S_IMODE(old))
        for each in (*made.rglob("*"), made):
            _sync(each)
        made.replace(path)
    with suppress(OSError):  # the file is complete even if this fails
        _sync(path.parent)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make a new folder for temporary files, deleted when the block ends, or by a later run if this one is killed."""
    with _part(Path(tempfile.gettempdir()), "mantissa") as folder:
        folder.mkdir()
        yield folder


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


@contextmanager
def _part(parent: Path, name: str) -> Iterator[Path]:
    """Yield an unused path in a new folder below ``parent`` that is deleted when the block ends; leftovers are deleted first."""
    for leftover in parent.glob(".*.part"):
        with suppress(OSError):
            _remove_if_abandoned(leftover)
    prefix = f".{name[:50]}."  # a file name has at most 255 bytes
    try:
        folder = Path(tempfile.mkdtemp(prefix=prefix, suffix=".part", dir=parent))
        try:
            with (folder / "unlocked").open("xb", buffering=0) as lock:
                with suppress(OSError):  # not every mount has locks; without one, nobody deletes the folder if this process is killed
                    fcntl.flock(lock, fcntl.LOCK_EX)
                lock.write(_kernel())
                (folder / "unlocked").rename(folder / _LOCK)
                yield folder / name
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        if str(error.filename).startswith(str(parent / prefix)):
            error.filename = str(parent / name)  # as the user knows it
        raise


def _remove_if_abandoned(folder: Path) -> None:
    """Delete a folder of `_part` whose process is dead. Raises OSError if it lives, or may live."""
    found = folder.lstat()
    if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode):
        return
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        newest = max(each.lstat().st_mtime for each in folder.rglob("*"))
        if os.read(lock, 100) != _kernel() and time.time() - newest < _UNTOUCHED_SECONDS:
            return
        for each in folder.iterdir():
            if each.name != _LOCK:  # deleted last: if this process is killed too, the next one continues
                shutil.rmtree(each) if each.is_dir() and not each.is_symlink() else each.unlink()
        shutil.rmtree(folder)
        _log.warning("Removed %s, which a killed run left unfinished.", printable(str(folder)))
    finally:
        os.close(lock)


def _kernel() -> bytes:
    """Return what identifies the running kernel: containers on one host share it, and with it their locks."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        return socket.gethostname().encode()
