"""Plain descriptions of what a pickle holds: nothing here imports, calls or allocates what a file names."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple


class Opaque:
    """A value that no tensor depends on; its contents are discarded."""


OPAQUE = Opaque()


class Entries(list[Any]):
    """A mapping as alternating keys and values: a dict would hash keys that the file chose. The last of equal keys counts."""

    __slots__ = ()


class Members(list[Any]):
    """The members of a set, which are not hashed."""

    __slots__ = ()


class Unknown(NamedTuple):
    """A class or function that is not in `GLOBALS`, by its module and name."""

    name: str


@dataclass(slots=True, eq=False)
class Foreign:
    """A value made by an unknown class or function. Its arguments are discarded.

    name: of that class or function; fault: why it cannot be read if it is a weight, None if it is no tensor; state: the attributes that
    the pickle sets; entries: the items that it sets, as of a subclass of dict.
    """

    name: str
    fault: str | None = None
    state: Any = None
    entries: Entries | None = None


class Dtype(NamedTuple):
    """An element type: torch's name for it, and bytes per element."""

    name: str
    itemsize: int


class StorageType(NamedTuple):
    """A class of storages, by the type of its elements."""

    dtype: Dtype


class Storage(NamedTuple):
    """The bytes of one or more tensors. key: its name in the file; first: where a view into it begins, in elements; numel: of the view;
    whole: elements of the entire storage, which the file states again next to the data.
    """

    key: str
    dtype: Dtype
    first: int
    numel: int
    whole: int


class Stored(NamedTuple):
    """A tensor. start, nbytes: from its first element to its last, in bytes from the storage's beginning."""

    key: str
    dtype: Dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    start: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Constructor:
    """A function or class that a state dict may name; ``make`` describes the result of a call."""

    name: str
    make: Callable[[tuple[Any, ...]], Any]


@dataclass(frozen=True, slots=True)
class TensorType:
    """A class of tensors, as an argument."""

    name: str
