"""Reads checkpoints in local files: a folder or a single file.

Files are read by offset into the caller's buffer, not memory-mapped: mapped pages count towards the process's memory.
"""

import hashlib
import os
import stat
from functools import cached_property
from pathlib import Path

from analyzers.checkpoints.reference import quoted
from analyzers.checkpoints.repository import Repository, read_range
from analyzers.checkpoints.weight_files.file_names import file_name, is_index, is_weights
from analyzers.checkpoints.weight_files.lists import MODULES
from analyzers.core import limits
from analyzers.core.errors import AccessDenied, CheckpointNotFound, InvalidCheckpoint, LimitExceeded

HASHED_WHOLE_BYTES = 64 << 20
ADAPTER_CONFIG = "adapter_config.json"
_HASHED = ("config.json", MODULES)
_ENDS_BYTES = 64 << 10

SAMPLES = Path(__file__).parents[1] / "language_models" / "samples"


class LocalFile:
    """One local file for positioned reads from several threads.

    Checkpoints have thousands of files and descriptors are limited, so each read opens the file anew. Every read verifies that the file is
    unchanged. state: identifies the file as of when the folder was read; by default, as of when it is first opened.
    """

    def __init__(self, location: Path, path: str, size: int, state: tuple[int, ...] | None = None) -> None:
        self._location = location
        self.path = path
        self.size = size
        self._state = state
        os.close(self._open())

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
            if _state(os.fstat(descriptor)) != self._state:
                raise self._changed()
        except OSError as error:
            raise InvalidCheckpoint(f"{quoted(self.path, 200)} cannot be read: {error.strerror}.") from None
        finally:
            os.close(descriptor)

    def _open(self) -> int:
        try:
            descriptor = os.open(self._location, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # do not wait for a FIFO in its place
        except PermissionError as error:
            raise _unusable(error, self.path) from None
        except OSError:
            raise self._changed() from None
        found = os.fstat(descriptor)
        if self._state in (None, _state(found)) and found.st_size == self.size and stat.S_ISREG(found.st_mode):
            self._state = _state(found)
            return descriptor
        os.close(descriptor)
        raise self._changed()

    def _changed(self) -> InvalidCheckpoint:
        return InvalidCheckpoint(f"{quoted(self.path, 200)} cannot be opened, or was changed while it was read.")


class LocalRepository:
    """A folder of files, or a single file, as a `Repository`.

    path: as the user typed it; ref: "sample:NAME" for a built-in sample, None for a user's path, which is never public. Links to files are
    followed, since the Hub's cache consists of them; links to folders and hidden names are skipped. Weight files that are no regular files,
    such as dangling links, or whose names are not UTF-8, are listed with 0 bytes and cannot be opened. A path to an adapter includes its
    configuration.

    ``folder``: of the files; ``single_file``: whether the path is a file. Raises CheckpointNotFound, AccessDenied, LimitExceeded.
    """

    range_requests = 4 * limits.RANGE_REQUESTS  # local reads are cheap, but each still costs half a millisecond

    def __init__(self, path: str | Path, ref: str | None = None) -> None:
        self._shown = ref or str(path)
        location = Path(os.path.abspath(path))  # noqa: PTH100 - Path.absolute keeps '..', Path.resolve follows links
        self.ref = ref or str(location).encode(errors="backslashreplace").decode()  # file names may hold any bytes
        self.public = ref is not None
        self.parallel_reads = max(2, min(8, limits.cores()))  # reads from the page cache are copies: one per core
        try:
            mode = location.stat().st_mode
            self.single_file = stat.S_ISREG(mode)
            self.folder = location.parent if self.single_file else location
            if not self.single_file and not stat.S_ISDIR(mode):
                raise CheckpointNotFound(f"{quoted(self._shown, 200)} is neither a folder nor a file.")
            found = self._with_configuration(location) if self.single_file else self._scan()
        except (OSError, ValueError) as error:
            raise _unusable(error, self._shown) from None
        self.files = {path: each.st_size if each else 0 for path, each in found.items()}
        self._states = {path: _state(each) if each else () for path, each in found.items()}

    @cached_property
    def commit(self) -> str:
        """SHA-256 (hex) over names, sizes and contents of weights, indexes, config.json and the lists of components.

        Above 64 MiB in total, contents of weights are replaced by their first and last 64 KiB and their times of modification (ns):
        hashing 140 GB would take longer than the analysis.
        """
        paths = [path for path in self.files if self.single_file or is_weights(path) or is_index(path) or file_name(path) in _HASHED]
        whole = sum(self.files[path] for path in paths) <= HASHED_WHOLE_BYTES
        digest = hashlib.sha256()
        for path in paths:
            name, size = path.encode(), self.files[path]
            digest.update(len(name).to_bytes(8, "little") + name + size.to_bytes(8, "little"))
            if size == 0:
                continue
            file = self.open(path)
            if whole:
                digest.update(read_range(file, 0, size))
            else:
                ends = min(size, _ENDS_BYTES)
                digest.update(self._states[path][-1].to_bytes(16, "little", signed=True))
                digest.update(read_range(file, 0, ends) + read_range(file, size - ends, ends))
        return digest.hexdigest()

    def open(self, path: str) -> LocalFile:
        """Open one of ``files``. Raises CheckpointNotFound, AccessDenied, InvalidCheckpoint."""
        if path not in self.files:
            raise CheckpointNotFound(f"{quoted(self._shown, 200)} holds no file {quoted(path, 200)}.")
        return LocalFile(self.folder / path, path, self.files[path], self._states[path])

    def close(self) -> None:
        """Do nothing: a local repository holds no resources."""

    def _with_configuration(self, location: Path) -> dict[str, os.stat_result | None]:
        """Return the named file, and the configuration next to an adapter."""
        files = {location.name: _regular(location)}
        if location.name.startswith("adapter_model.") and (beside := _regular(self.folder / ADAPTER_CONFIG)):
            files[ADAPTER_CONFIG] = beside
        return files

    def _scan(self) -> dict[str, os.stat_result | None]:
        """Return every regular file below the folder by its path, in order, and None for other ones with names of weights."""
        files: dict[str, os.stat_result | None] = {}
        seen = 0
        for where, folders, names in os.walk(self.folder, onerror=_fail):
            folders[:] = [name for name in folders if not name.startswith(".")]
            seen += len(folders) + len(names)
            if seen > limits.REPOSITORY_FILES:
                many = f"more than {limits.REPOSITORY_FILES:,} files"
                raise LimitExceeded(f"{quoted(self._shown, 200)} holds {many}: name the folder of one checkpoint.")
            for location in (Path(where, name) for name in names if not name.startswith(".")):
                path = location.relative_to(self.folder).as_posix()
                shown = os.fsencode(path).decode(errors="backslashreplace")
                found = _regular(location) if shown == path else None
                if found is not None or is_weights(path):
                    files[shown] = found
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


def _regular(location: Path) -> os.stat_result | None:
    """Return the state of a regular file, also behind a link; None for anything else."""
    try:
        found = location.stat()
    except OSError:  # a link to nothing, or to itself
        return None
    return found if stat.S_ISREG(found.st_mode) else None


def _fail(error: OSError) -> None:
    raise error


def _state(found: os.stat_result) -> tuple[int, ...]:
    """Return what identifies an unchanged file. ctime changes with every write, even if the modification time is restored."""
    return found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns, found.st_mtime_ns


def _unusable(error: OSError | ValueError, shown: str) -> CheckpointNotFound | AccessDenied:
    if isinstance(error, PermissionError):
        return AccessDenied(f"{quoted(shown, 200)} may not be read by this user: check its permissions.")
    why = error.strerror if isinstance(error, OSError) else "it holds a null character"
    return CheckpointNotFound(f"{quoted(shown, 200)} is not a folder or file that can be read: {why}.")
