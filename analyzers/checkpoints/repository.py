"""Protocols of a repository whose files can be read by range.

`hub_repository.HubRepository`, `local.LocalRepository` and `in_memory.MemoryRepository` are the implementations; everything above them
(layout, header, stream, sample) sees only these protocols.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Protocol

from numpy.typing import NDArray

from analyzers.core.untrusted_json import InvalidJson, JsonTooLarge, parse_json

_PIECE = 8 << 20


@dataclass(frozen=True, slots=True)
class Access:
    """Permissions to read; by default public Hub repositories and samples, as for anonymous visitors.

    token: the Hub token to read with; None for none at all (never the server's own); True for the token this machine is logged in with, as
    huggingface_hub finds it (command line only). local: whether local folders and files may be opened (command line only). memory:
    reference ``memory:NAME`` -> the repository that this program holds under that name (Python only).
    """

    token: str | bool | None = None
    local: bool = False
    memory: "Mapping[str, Repository]" = field(default_factory=dict)

    def devices(self, references: Collection[str]) -> list[str]:
        """The kinds of devices that hold the models of these references; none unless all are in memory."""
        held = [self.memory[each] for each in references if each in self.memory]
        return [getattr(each, "device", "cpu") for each in held] if len(held) == len(references) else []

    def __repr__(self) -> str:  # a token must not end up in a log
        return f"Access(token={'***' if isinstance(self.token, str) else self.token}, local={self.local})"


class RangeFile(Protocol):
    """One file of a repository at one commit. Safe to read from several threads at once.

    path: inside the repository, with forward slashes; size: bytes.
    """

    @property
    def path(self) -> str: ...
    @property
    def size(self) -> int: ...

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` (writable, format "B") with the bytes from ``offset`` on, or raise. Never a partial read."""


# Fills a buffer with the bytes of a stored file from an offset on.
ReadStored = Callable[[RangeFile, int, memoryview], None]


class DecodingFile(RangeFile, Protocol):
    """A file of values that are computed from what ``read_stored`` reads."""

    def read_into(self, offset: int, buffer: memoryview, read_stored: ReadStored = ...) -> None:
        """Fill ``buffer`` with the bytes from ``offset`` on."""

    def read_box(self, offset: int, strides: tuple[int, ...], out: NDArray[Any], read_stored: ReadStored = ...) -> bool:
        """Fill ``out`` with the elements from a byte offset on that lie at strides of elements; return False if this cannot be done."""


class Repository(Protocol):
    """A checkpoint's files at one commit.

    ref: canonical reference without revision: ``org/name``, ``sample:NAME``, an absolute path or ``memory:NAME``; commit: the Hub's commit,
    or the hash of the files of a sample or local checkpoint; public: True for samples and for Hub repositories that anybody can read: only
    their reports may be stored; files: path -> size in bytes; parallel_reads: how many concurrent reads this source benefits from;
    range_requests: most reads of its weights in one quick run; over a network each is a request.
    """

    @property
    def ref(self) -> str: ...
    @property
    def commit(self) -> str: ...
    @property
    def public(self) -> bool: ...
    @property
    def files(self) -> Mapping[str, int]: ...
    @property
    def parallel_reads(self) -> int: ...
    @property
    def range_requests(self) -> int: ...

    def open(self, path: str) -> RangeFile:
        """Open one of ``files``."""

    def close(self) -> None:
        """Free connections and files. Idempotent."""


def copy_range(file: RangeFile, offset: int, length: int, out: BinaryIO) -> Iterator[int]:
    """Append ``length`` bytes of ``file`` from ``offset`` on to ``out``; yield the size of each piece."""
    buffer = memoryview(bytearray(min(_PIECE, length)))
    for start in range(0, length, _PIECE):
        piece = buffer[: length - start]
        file.read_into(offset + start, piece)
        yield out.write(piece)


def read_range(file: RangeFile, offset: int, length: int) -> bytes:
    """Return ``length`` bytes of ``file`` from ``offset`` on; for small reads (headers, config)."""
    buffer = bytearray(length)
    file.read_into(offset, memoryview(buffer))
    return bytes(buffer)


def read_file(repository: Repository, path: str) -> bytes:
    """Return the content of a small file of a repository."""
    return read_range(repository.open(path), 0, repository.files[path])


def read_json(repository: Repository, path: str, most: int) -> Any:
    """Parse a JSON file of at most ``most`` bytes as Python's json and transformers do; half surrogate pairs, which no report can hold, go.

    Raises InvalidJson and its subclass JsonTooLarge.
    """
    if repository.files[path] > most:
        raise JsonTooLarge(f"has {repository.files[path]:,} bytes, more than {most:,}")
    raw = read_file(repository, path)
    content = parse_json(raw, lenient=True)
    if b"\\ud" in raw.lower():
        content = parse_json(json.dumps(content, ensure_ascii=False).encode(errors="replace"), lenient=True)
    return content


def read_object(repository: Repository, path: str, most: int) -> dict[str, Any]:
    """Read a JSON object of at most ``most`` bytes; empty if it is missing, or cannot be read as one."""
    try:
        content = read_json(repository, path, most) if path in repository.files else None
    except InvalidJson:
        return {}
    return content if isinstance(content, dict) else {}
