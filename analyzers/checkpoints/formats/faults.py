"""Faults of weight files, raised where the name of the file is not known; `faults_named` turns them into errors that begin with it."""

from collections.abc import Iterator
from contextlib import contextmanager

from analyzers.checkpoints.reference import quoted
from analyzers.checkpoints.repository import RangeFile, read_range
from analyzers.core.errors import InvalidCheckpoint, LimitExceeded, UnsupportedWeights

_POINTER_BYTES = 1_000  # a Git LFS pointer has about 130


class Damaged(Exception):
    """The file contradicts itself or its format. The text ends the sentence "FILE is cut off or damaged: ..."."""


class Unsupported(Exception):
    """The file may be sound but is not read. The text ends a sentence that begins with the file's name, as that of `Excess` does."""


class Excess(Exception):
    """The file is larger than a limit."""


def cut_off(what: str, needed: int, size: int) -> Damaged:
    """Return the fault of a file with only ``size`` of the bytes that a part of it needs. what: that part, with its verb."""
    return Damaged(f"its {what} {needed:,} bytes and it has {size:,}")


@contextmanager
def faults_named(file: RangeFile) -> Iterator[None]:
    """Raise InvalidCheckpoint, UnsupportedWeights and LimitExceeded in place of faults, and for a file that holds no weights."""
    name = quoted(file.path, 200)
    try:
        if file.size == 0:
            raise Damaged("it is empty")
        if file.size < _POINTER_BYTES and read_range(file, 0, file.size).startswith(b"version https://git-lfs"):
            raise Damaged("it is a Git LFS pointer in place of the weights, which 'git lfs pull' fetches")
        yield
    except Damaged as error:
        raise InvalidCheckpoint(f"{name} is cut off or damaged: {error}. Upload or download it again.") from None
    except Unsupported as error:
        raise UnsupportedWeights(f"{name} {error}") from None
    except Excess as error:
        raise LimitExceeded(f"{name} {error}") from None
