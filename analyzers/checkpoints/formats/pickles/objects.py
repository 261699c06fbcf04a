"""Plain descriptions of a pickle's contents: nothing in this module imports, calls or allocates what a file names."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

# Bytes per element of torch's dtypes, and their names in safetensors; the others have none.
ITEMSIZES = {
    name: size
    for size, names in {
        1: "uint8 int8 bool qint8 quint8 quint4x2 quint2x4 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu "
        "float4_e2m1fn_x2 bits8 bits1x8 bits2x4 bits4x2",
        2: "float16 bfloat16 int16 uint16 bits16",
        4: "float32 int32 uint32 qint32 complex32",
        8: "float64 int64 uint64 complex64",
        16: "complex128",
    }.items()
    for name in names.split()
}
DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32", "int16": "I16",
    "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL", "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0", "float4_e2m1fn_x2": "F4",
}  # fmt: skip
_STORAGES = {
    "Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64", "Int": "int32", "Short": "int16",
    "Char": "int8", "Byte": "uint8", "Bool": "bool", "ComplexFloat": "complex64", "ComplexDouble": "complex128", "Untyped": "uint8",
    "QInt8": "qint8", "QUInt8": "quint8", "QInt32": "qint32", "QUInt4x2": "quint4x2", "QUInt2x4": "quint2x4",
}  # fmt: skip
# Class of a storage, by its full name -> torch's name of the type of its elements.
STORAGES = {f"{module}.{kind}Storage": of for module in ("torch", "torch.cuda", "torch.storage") for kind, of in _STORAGES.items()}


class Damaged(Exception):
    """The file contradicts itself or its format; the text ends the sentence "FILE is damaged: ..."."""


class Refused(Exception):
    """The file may be sound but is not read; the text ends a sentence that begins with the file's name."""


class Excess(Exception):
    """The file is larger than a limit; the text ends a sentence that begins with the file's name."""


class Global(NamedTuple):
    """A class or function, by its module and name."""

    name: str


class Pairs(list[tuple[Any, Any]]):
    """A mapping as pairs of keys and values: a dict would hash keys that the file chose. The last of equal keys counts."""

    __slots__ = ()

    def entries(self) -> Iterator[tuple[Any, Any]]:
        """Return keys and values; the last of equal names counts, at the position of the first."""
        found: dict[Any, Any] = {}
        for number, (key, value) in enumerate(self):
            found[key if type(key) is str else number] = (key, value)
        return iter(found.values())


@dataclass(slots=True, eq=False)
class Opaque:
    """A value made by an unknown class or function, or a tensor that cannot be read. Its arguments are discarded.

    name: of that class or function; fault: what kind of tensor it is and why it cannot be read, "" if it is no tensor; state: the
    attributes that the pickle sets; entries: the items that it sets, for a subclass of dict.
    """

    name: str
    fault: str = ""
    state: Any = None
    entries: Pairs | None = None


class Storage(NamedTuple):
    """The bytes of one or more tensors. key: its name in the file; numel: its elements."""

    key: str
    dtype: str
    numel: int

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.numel * ITEMSIZES[self.dtype]


class Stored(NamedTuple):
    """A tensor that can be read.

    start: bytes from the storage's beginning to its first element; nbytes: bytes from there to its last element.
    """

    key: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    start: int
    nbytes: int

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)
