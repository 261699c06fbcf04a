"""Plain descriptions of a pickle's contents: nothing in this module imports, calls or allocates what a file names."""

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
    """A value made by an unknown class or function, or a tensor that cannot be read. Its arguments are discarded.

    name: of that class or function; fault: what kind of tensor it is and why it cannot be read, None if it is no tensor; elements: of that
    tensor, None if unknown; state: the attributes that the pickle sets; entries: the items that it sets, for a subclass of dict.
    """

    name: str
    fault: str | None = None
    elements: int | None = None
    state: Any = None
    entries: Entries | None = None


class Dtype(NamedTuple):
    """An element type: torch's name for it, and bytes per element."""

    name: str
    itemsize: int


# safetensors names of torch's dtypes; the others have none.
DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32", "int16": "I16",
    "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL", "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0", "float4_e2m1fn_x2": "F4",
}  # fmt: skip


class StorageType(NamedTuple):
    """A class of storages, identified by the type of its elements."""

    dtype: Dtype


class Storage(NamedTuple):
    """The bytes of one or more tensors.

    key: its name in the file; first: where a view of it begins, in elements; numel: elements of the view; whole: elements of the entire
    storage, which the file states again next to the data.
    """

    key: str
    dtype: Dtype
    first: int
    numel: int
    whole: int


class Stored(NamedTuple):
    """A tensor that can be read.

    start: bytes from the storage's beginning to its first element; nbytes: bytes from there to its last element.
    """

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
    """A class of tensors, as it occurs in arguments."""

    name: str
