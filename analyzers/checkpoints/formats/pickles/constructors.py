"""Describes what the classes and functions that build a state dict would return: nothing imports, calls or allocates what a file names.

A pickle names classes and functions and says with which arguments to call them. The few that torch.save uses for state dicts are in
`CONSTRUCTORS`, by name, as functions from arguments to plain descriptions. A call of anything else becomes `Opaque`, which keeps its name.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from analyzers.checkpoints.formats.faults import Damaged, Excess
from analyzers.checkpoints.tensor import normal_strides
from analyzers.core import limits

# torch's dtypes by name: bytes per element, and the name in safetensors, "" if there is none.
DTYPES = {
    "float64": (8, "F64"), "float32": (4, "F32"), "float16": (2, "F16"), "bfloat16": (2, "BF16"), "int64": (8, "I64"), "int32": (4, "I32"),
    "int16": (2, "I16"), "int8": (1, "I8"), "uint64": (8, "U64"), "uint32": (4, "U32"), "uint16": (2, "U16"), "uint8": (1, "U8"),
    "bool": (1, "BOOL"), "complex64": (8, "C64"), "complex128": (16, ""), "complex32": (4, ""), "float8_e4m3fn": (1, "F8_E4M3"),
    "float8_e5m2": (1, "F8_E5M2"), "float8_e4m3fnuz": (1, "F8_E4M3FNUZ"), "float8_e5m2fnuz": (1, "F8_E5M2FNUZ"),
    "float8_e8m0fnu": (1, "F8_E8M0"), "float4_e2m1fn_x2": (1, ""), "qint8": (1, ""), "quint8": (1, ""), "qint32": (4, ""),
    "quint4x2": (1, ""), "quint2x4": (1, ""),
}  # fmt: skip
_STORAGES = {
    "Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64", "Int": "int32", "Short": "int16",
    "Char": "int8", "Byte": "uint8", "Bool": "bool", "ComplexFloat": "complex64", "ComplexDouble": "complex128", "Untyped": "uint8",
    "QInt8": "qint8", "QUInt8": "quint8", "QInt32": "qint32", "QUInt4x2": "quint4x2", "QUInt2x4": "quint2x4",
}  # fmt: skip
# Class of a storage, by its full name -> torch's name of the type of its elements.
STORAGES = {f"{module}.{kind}Storage": of for module in ("torch", "torch.cuda", "torch.storage") for kind, of in _STORAGES.items()}

_OVERFLOW = 1 << 63
_REBUILD = "torch._utils._rebuild"
_FIRST_ARGUMENTS = 4  # functions that rebuild tensors take the storage among these


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
    """A value made by an unknown class or function. Its arguments are discarded.

    name: of that class or function; tensor: whether it is a tensor that cannot be read; state: the attributes that the pickle sets.
    """

    name: str
    tensor: bool = False
    state: Any = None


class Storage(NamedTuple):
    """The bytes of one or more tensors. key: its name in the file; numel: its elements."""

    key: str
    dtype: str
    numel: int

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.numel * DTYPES[self.dtype][0]


class Stored(NamedTuple):
    """A tensor. dtype: its name in safetensors, or torch's for one that cannot be read; start, nbytes: of its elements in the storage."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    start: int
    nbytes: int


def construct(function: Global | Opaque, arguments: tuple[Any, ...]) -> Any:
    """Describe a call without making it; an unknown function of a storage or tensor yields a tensor that cannot be read."""
    name = function.name
    if type(function) is Global and name in CONSTRUCTORS:
        return CONSTRUCTORS[name](*arguments)
    first = arguments[:_FIRST_ARGUMENTS]
    return Opaque(name, name.startswith(_REBUILD) or any(isinstance(each, Storage) or is_tensor(each) for each in first))


def is_tensor(value: Any) -> bool:
    """Return whether ``value`` is a tensor, readable or not."""
    return type(value) is Stored or (type(value) is Opaque and value.tensor)


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, *rest: Any, dtype: str = "") -> Stored | Opaque:
    """Describe a tensor, with every argument checked against the others and the storage. rest: requires_grad, hooks, metadata."""
    if type(storage) is Opaque:
        return Opaque(storage.name, tensor=True)
    if type(storage) is not Storage:
        raise Damaged("a tensor is built from something other than a storage")
    dtype = dtype or storage.dtype
    if type(shape) is not tuple or type(strides) is not tuple or len(shape) != len(strides):
        raise Damaged("a tensor's shape and strides are not tuples of the same length")
    if len(shape) > limits.TENSOR_DIMENSIONS:
        raise Excess(f"holds a tensor of {len(shape):,} dimensions, more than {limits.TENSOR_DIMENSIONS}.")
    if any(type(number) is not int or not 0 <= number < _OVERFLOW for number in (offset, *shape, *strides)):
        raise Damaged("a tensor's shape, strides and offset are not whole numbers from 0 on")
    size = DTYPES[dtype][0]
    elements = last = 1
    for length, stride in zip(shape, strides, strict=True):
        elements, last = elements * (length or 1), last + (length - 1) * stride
        if elements * size >= _OVERFLOW:
            raise Damaged("a tensor has more than 2^63 bytes")
    if len(rest) > 2 and rest[2]:
        return Opaque("a tensor to be conjugated or negated", tensor=True)
    known, views = DTYPES[dtype][1] or f"torch.{dtype}", normal_strides(shape, strides)
    if 0 in shape:
        return Stored(storage.key, known, shape, None, 0, 0)
    if (offset + last) * size > storage.nbytes:
        raise Damaged("a tensor reaches beyond the end of its storage")
    return Stored(storage.key, known, shape, views, offset * size, last * size)


def _tensor_v3(storage: Any, offset: Any, shape: Any, strides: Any, grad: Any, hooks: Any, dtype: Any, *metadata: Any) -> Stored | Opaque:
    name = dtype.name.removeprefix("torch.") if type(dtype) is Global else ""
    if name not in DTYPES:
        return Opaque(f"dtype {name}", tensor=True)
    return _tensor(storage, offset, shape, strides, grad, hooks, *metadata, dtype=name)


def _parameter(tensor: Any, *_: Any) -> Stored | Opaque:
    if type(tensor) not in (Stored, Opaque):
        raise Damaged("a parameter is built from something other than a tensor")
    return tensor if type(tensor) is Stored else Opaque(tensor.name, tensor=True)


def _from_type(function: Any, kind: Any, arguments: Any, *_: Any) -> Stored | Opaque:
    """Describe a tensor with attributes, or of a subclass: one that is rebuilt like any tensor has the same bytes."""
    if type(kind) not in (Global, Opaque) or type(arguments) is not tuple or type(function) not in (Global, Opaque):
        raise Damaged("a tensor with attributes is built from something other than a tensor")
    if function.name.startswith(_REBUILD) and function.name in CONSTRUCTORS:
        return construct(function, arguments)  # type: ignore[no-any-return]
    return Opaque(function.name if kind.name == "torch.Tensor" else kind.name, tensor=True)


def _mapping(pairs: Any = ()) -> Pairs:
    """Describe an OrderedDict: empty, or from a list of pairs."""
    if (pairs and type(pairs) is not list) or any(type(pair) not in (tuple, list) or len(pair) != 2 for pair in pairs):
        raise Damaged("an OrderedDict is built from something other than a list of pairs")
    return Pairs((key, value) for key, value in pairs)


def _first(value: Any = (), *_: Any) -> Any:
    """Describe a set, a shape, bytes or a container of TorchScript by what it is made from."""
    return value


CONSTRUCTORS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys((f"{_REBUILD}_tensor", f"{_REBUILD}_tensor_v2"), _tensor),
    f"{_REBUILD}_tensor_v3": _tensor_v3,
    **dict.fromkeys((f"{_REBUILD}_parameter", f"{_REBUILD}_parameter_with_state", "torch.nn.parameter.Parameter"), _parameter),
    **dict.fromkeys(("torch._tensor._rebuild_from_type", "torch._tensor._rebuild_from_type_v2"), _from_type),
    "collections.OrderedDict": _mapping,
    **dict.fromkeys(("collections.Counter", "collections.defaultdict"), lambda *_: Pairs()),
    **dict.fromkeys(("torch.Size", "torch.device", "torch.serialization._get_layout", "_codecs.encode"), _first),
    **{f"torch.jit._pickle.{name}": _first
       for name in ("restore_type_tag", "build_intlist", "build_tensorlist", "build_doublelist", "build_boollist")},
    **{f"{module}.{name}": _first for module in ("builtins", "__builtin__") for name in ("set", "frozenset", "complex", "bytearray")},
}  # fmt: skip
