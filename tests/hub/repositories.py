"""Defines the state of the local Hub: file contents, commits, repositories, and the tokens that may read them."""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

LFS_SUFFIXES = (".safetensors", ".bin", ".pt", ".h5", ".gguf", ".parquet", ".npz")
LFS_BYTES = 10_000_000

Kind = Literal["model", "dataset"]
Gate = Literal[False, "auto", "manual"]


class Contents(Protocol):
    """The bytes of a file. ``digest``: 64 hex digits that identify the contents (the LFS ETag)."""

    @property
    def size(self) -> int:
        """Number of bytes."""

    @property
    def digest(self) -> str:
        """Identifier of the contents, 64 hex digits."""

    def read(self, offset: int, length: int) -> bytes | memoryview:
        """Return exactly ``length`` bytes from ``offset``; the caller keeps both inside the file."""


class InMemory:
    """Contents in memory."""

    def __init__(self, data: bytes) -> None:
        self.size = len(data)
        self.digest = hashlib.sha256(data).hexdigest()
        self._data = memoryview(data)

    def read(self, offset: int, length: int) -> memoryview:
        """Return a view, without copying."""
        return self._data[offset : offset + length]


class OnDisk:
    """Contents of a local file. The digest is that of its path, size and time, since hashing gigabytes would cost seconds."""

    def __init__(self, path: Path) -> None:
        status = path.stat()
        self.path = path
        self.size = status.st_size
        self.digest = hashlib.sha256(f"{path.resolve()} {status.st_size} {status.st_mtime_ns}".encode()).hexdigest()

    def read(self, offset: int, length: int) -> bytes:
        """Read from the file, opened for this one call."""
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            return os.pread(descriptor, length, offset)
        finally:
            os.close(descriptor)


class Generated:
    """Contents made on demand: ``make(offset, length)`` returns exactly those bytes.

    identity: identifies the contents; two files with the same identity and size have the same ETag.
    """

    def __init__(self, size: int, make: Callable[[int, int], bytes | memoryview], identity: str) -> None:
        self.size = size
        self.digest = hashlib.sha256(f"{identity} {size}".encode()).hexdigest()
        self.read = make


def contents_of(source: bytes | Path | Contents) -> Contents:
    """Convert ``source`` to contents."""
    if isinstance(source, bytes):
        return InMemory(source)
    return OnDisk(source) if isinstance(source, Path) else source


def is_lfs(path: str, contents: Contents) -> bool:
    """Return whether the Hub would store this file outside git: weights by name, any other file by size."""
    return path.endswith(LFS_SUFFIXES) or contents.size > LFS_BYTES


def etag(path: str, contents: Contents) -> str:
    """Return the ETag without its quotes: 64 hex digits for LFS files, 40 for others."""
    return contents.digest if is_lfs(path, contents) else contents.digest[:40]


@dataclass(frozen=True)
class Commit:
    """A state of all files. ``sha``: 40 hex digits."""

    sha: str
    files: Mapping[str, Contents]


@dataclass
class Repository:
    """A repository. Old commits stay readable; a branch or tag is a name for a commit."""

    id: str
    kind: Kind
    private: bool
    gated: Gate
    info: Mapping[str, object]
    commits: dict[str, Commit] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    titles: list[str] = field(default_factory=list)

    def commit(self, files: Mapping[str, bytes | Path | Contents], revision: str, remove: Iterable[str]) -> str:
        """Add a commit to ``revision`` (created from main if it is new) and return its sha."""
        parent = self.refs.get(revision, self.refs.get("main", ""))
        state = dict(self.commits[parent].files) if parent else {}
        state.update({path: contents_of(source) for path, source in files.items()})
        for path in remove:
            del state[path]
        listing = "\n".join(f"{path} {contents.digest}" for path, contents in sorted(state.items()))
        sha = hashlib.sha1(f"{self.id}\n{parent}\n{listing}".encode()).hexdigest()
        self.commits[sha] = Commit(sha, state)
        self.refs[revision] = sha
        return sha

    def at(self, revision: str) -> Commit | None:
        """Return the commit of a branch, tag, ``refs/...`` name or sha."""
        return self.commits.get(self.refs.get(revision, revision))


@dataclass(frozen=True)
class User:
    """The owner of a token, the private and gated repositories it may read, and those it may write in addition to the user's own.

    discusses: whether it may open pull requests elsewhere.
    """

    name: str
    repositories: frozenset[str]
    writes: frozenset[str] = frozenset()
    discusses: bool = True
