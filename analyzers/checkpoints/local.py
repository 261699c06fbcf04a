"""Reads checkpoints in local files: a folder or a single file.

Files are read by offset into the caller's buffer, not memory-mapped: mapped pages count towards the process's memory.
"""

import errno
import hashlib
import os
import stat
from functools import cached_property
from pathlib import Path

from analyzers.checkpoints.reference import quoted
from analyzers.checkpoints.repository import RangeFile, Repository, read_range
from analyzers.checkpoints.weight_files.components import MODULES, PIPELINE
from analyzers.checkpoints.weight_files.file_names import GGUF, SAFETENSORS, is_index, is_weights
from analyzers.checkpoints.weight_files.selection import parts_of
from analyzers.core import limits
from analyzers.core.errors import AccessDenied, CheckpointNotFound, InvalidCheckpoint, LimitExceeded
from analyzers.core.terminal import printable

HASHED_WHOLE_BYTES = 64 << 20
_HEADER_LENGTH = 8
ADAPTER_CONFIG = "adapter_config.json"
_HASHED = ("config.json", MODULES, PIPELINE)
_TAIL_BYTES = 64 << 10

SAMPLES = Path(__file__).parents[1] / "language_models" / "samples"


class LocalFile:
    """One local file for positioned reads from several threads.

    Checkpoints have thousands of files and descriptors are limited, so each read opens the file anew. Every open verifies that the file is
    unchanged. state: identifies the file as of when the folder was read; by default, as of when it is first opened.
    """

    def __init__(self, location: Path, path: str, size: int, state: tuple[int, ...] | None = None) -> None:
        self._location = location
        self.path = path
        self.size = size
        self._closed = False
        self._state = state
        os.close(self._open())

    def confirm(self) -> None:
        """Raise InvalidCheckpoint if the file was replaced or modified since it was opened: reads may then mix two versions."""
        try:
            state = _state(self._location.stat())
        except OSError:
            raise self._changed() from None
        if state != self._state:
            raise self._changed()

    @property
    def modified(self) -> int:
        """Time of last modification, in ns since the epoch."""
        assert self._state is not None
        return self._state[-1]

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes from ``offset`` on. Raises InvalidCheckpoint if the file ends too early."""
        done = 0
        descriptor = self._open()
        try:
            while done < len(buffer):
                count = os.preadv(descriptor, [buffer[done:]], offset + done)
                if count == 0:
                    raise InvalidCheckpoint(f"{quoted(self.path, 200)} ends at byte {offset + done:,}: it was cut off while being read.")
                done += count
        except OSError as error:
            raise InvalidCheckpoint(f"{quoted(self.path, 200)} cannot be read: {os.strerror(error.errno or errno.EIO)}.") from None
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Refuse further reads. Idempotent."""
        self._closed = True

    def _open(self) -> int:
        if self._closed:
            raise InvalidCheckpoint(f"{quoted(self.path, 200)} cannot be read: it is closed.")
        try:
            descriptor = os.open(self._location, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # do not wait for a FIFO in its place
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.ELOOP, errno.ENXIO):
                raise self._changed() from None
            raise _unusable(error, self.path) from None
        found = os.fstat(descriptor)
        if self._state in (None, _state(found)) and found.st_size == self.size and stat.S_ISREG(found.st_mode):
            self._state = _state(found)
            return descriptor
        os.close(descriptor)
        raise self._changed()

    def _changed(self) -> InvalidCheckpoint:
        return InvalidCheckpoint(
            f"{quoted(self.path, 200)} was changed, replaced or removed while it was being read: run it again once it is complete."
        )


class LocalRepository:
    """A folder of files, or a single file, as a `Repository`.

    path: as the user typed it; ref: "sample:NAME" for a built-in sample, None for a user's path, which is never public. Links to files are
    followed, since the Hub's cache consists of them; links to folders and hidden names are skipped. A path to one part of a GGUF file
    includes the other parts next to it, and a path to an adapter its configuration.

    ``folder``: the folder of the files; ``single_file``: whether the path is a file; ``unreadable``: names of weight files that are no
    regular files, such as dangling links, or not UTF-8. Raises CheckpointNotFound, AccessDenied, LimitExceeded.
    """

    range_requests = 4 * limits.RANGE_REQUESTS  # local reads are cheap, but each still costs half a millisecond

    def __init__(self, path: str | Path, ref: str | None = None) -> None:
        self._shown = ref or str(path)
        self._location = Path(os.path.abspath(path))  # noqa: PTH100 - Path.absolute keeps '..', Path.resolve follows links
        self.ref = ref or str(self._location).encode(errors="backslashreplace").decode()  # file names may hold any bytes
        self.public = ref is not None
        self.parallel_reads = max(2, min(8, limits.cores()))  # reads from the page cache are copies: one per core
        self.unreadable: list[str] = []
        try:
            mode = self._location.stat().st_mode
            self.single_file = stat.S_ISREG(mode)
            self.folder = self._location.parent if self.single_file else self._location
            if self.single_file:
                found = self._with_parts(self._location.name)
            elif stat.S_ISDIR(mode):
                found = self._scan()
            else:
                raise CheckpointNotFound(f"{quoted(self._shown, 200)} is neither a folder nor a file.")
        except (OSError, ValueError) as error:
            raise _unusable(error, self._shown) from None
        self.files = {path: each.st_size for path, each in found.items()}
        self._states = {path: _state(each) for path, each in found.items()}

    @cached_property
    def commit(self) -> str:
        """SHA-256 (hex) over names, sizes and contents of weights, indexes, config.json and the lists of components.

        Above 64 MiB in total, contents are replaced by modification times (ns) and the safetensors headers, or the first and last
        64 KiB of other formats: hashing 140 GB would take longer than the analysis.
        """
        paths = [path for path in self.files if self.single_file or is_weights(path) or _is_description(path)]
        whole = sum(self.files[path] for path in paths) <= HASHED_WHOLE_BYTES
        digest = hashlib.sha256()
        for path in paths:
            size = self.files[path]
            name = path.encode()
            digest.update(len(name).to_bytes(8, "little") + name + size.to_bytes(8, "little"))
            file = self.open(path)
            if not whole:
                digest.update(file.modified.to_bytes(16, "little", signed=True))
            digest.update(read_range(file, 0, size if whole else _header_bytes(file)))
            if not whole and not path.endswith(SAFETENSORS):  # a zip archive has its directory at the end
                digest.update(read_range(file, size - min(size, _TAIL_BYTES), min(size, _TAIL_BYTES)))
        return digest.hexdigest()

    def open(self, path: str) -> LocalFile:
        """Open one of ``files``. Raises CheckpointNotFound, AccessDenied, InvalidCheckpoint, LimitExceeded."""
        if path not in self.files:
            raise CheckpointNotFound(f"{quoted(self._shown, 200)} holds no file {quoted(path, 200)}.")
        return LocalFile(self.folder / path, path, self.files[path], self._states[path])

    def close(self) -> None:
        """Do nothing: a local repository holds no resources."""

    def _with_parts(self, name: str) -> dict[str, os.stat_result]:
        """Return the named file and what belongs to it and is next to it: parts of a GGUF file, in order; an adapter's configuration."""
        names = parts_of(name) if name.endswith(GGUF) else [name, *[ADAPTER_CONFIG] * name.startswith("adapter_model.")]
        return {each: (self.folder / each).stat() for each in names if each == name or (self.folder / each).is_file()}

    def _scan(self) -> dict[str, os.stat_result]:
        files: dict[str, os.stat_result] = {}
        folders = [""]
        seen = 0
        while folders:
            folder = folders.pop()
            with os.scandir(self.folder / folder) as entries:
                for entry in entries:
                    seen += 1
                    if seen > limits.REPOSITORY_FILES:
                        raise LimitExceeded(
                            f"{quoted(self._shown, 200)} holds more than {limits.REPOSITORY_FILES:,} files: "
                            "name the folder of one checkpoint."
                        )
                    path = f"{folder}/{entry.name}" if folder else entry.name
                    if entry.name.startswith("."):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(path)
                        continue
                    try:
                        found = entry.stat()
                    except OSError:  # a link to nothing, or to itself
                        found = None
                    if found is not None and stat.S_ISREG(found.st_mode) and _is_text(path):
                        files[path] = found
                    elif is_weights(path) and not (found is not None and stat.S_ISDIR(found.st_mode)):
                        self.unreadable.append(printable(os.fsencode(path).decode(errors="backslashreplace")))
        self.unreadable.sort()
        return dict(sorted(files.items()))


def is_local(repository: Repository) -> bool:
    """Return whether the files of a repository, or of the base of a merged one, are on this machine."""
    return isinstance(getattr(repository, "base", repository), LocalRepository)


def sample_folder(name: str) -> Path:
    """Return the folder of a built-in sample, in the Hub's file layout.

    Raises CheckpointNotFound, listing the samples, for an unknown one.
    """
    known = sorted(
        path.name for path in SAMPLES.iterdir() if any((path / each).exists() for each in ("config.json", "adapter_config.json"))
    )
    if name not in known:
        raise CheckpointNotFound(f"There is no built-in sample {name[:40]!r}; choose one of: {', '.join(known)}.")
    return SAMPLES / name


def _is_description(path: str) -> bool:
    return is_index(path) or path.rpartition("/")[2] in _HASHED


def _header_bytes(file: RangeFile) -> int:
    if not file.path.endswith(SAFETENSORS):
        return min(file.size, HASHED_WHOLE_BYTES if _is_description(file.path) else _TAIL_BYTES)
    if file.size < _HEADER_LENGTH:
        return file.size
    length = int.from_bytes(read_range(file, 0, _HEADER_LENGTH), "little")
    return min(_HEADER_LENGTH + length, file.size, _HEADER_LENGTH + limits.HEADER_BYTES)


def _state(found: os.stat_result) -> tuple[int, ...]:
    """Return what identifies an unchanged file. ctime changes with every write, even if the modification time is restored."""
    return found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns, found.st_mtime_ns


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:  # a name that is not UTF-8 cannot be displayed or put into a report
        return False
    return True


def _unusable(error: OSError | ValueError, shown: str) -> CheckpointNotFound | AccessDenied | LimitExceeded:
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.EMFILE, errno.ENFILE):
        return LimitExceeded("The checkpoint has more files than this process may open at once: raise it with 'ulimit -n'.")
    if number in (errno.EACCES, errno.EPERM):
        return AccessDenied(f"{quoted(shown, 200)} may not be read by this user: check its permissions.")
    if number == errno.ELOOP:
        return CheckpointNotFound(f"{quoted(shown, 200)} is a link that leads back to itself.")
    return CheckpointNotFound(f"{quoted(shown, 200)} is not a folder or file that can be read.")
