"""Describes what the classes and functions that build a state dict would return, as functions from arguments to descriptions (`objects`).

A pickle names classes and functions and says with which arguments to call them. The few that torch.save uses for state dicts are in
`MAKERS`, by name. A call of anything else becomes `Opaque`, which keeps its name and discards its arguments.
"""

from collections.abc import Callable
from typing import Any

from analyzers.checkpoints.formats.pickles.objects import (
    DTYPES,
    ITEMSIZES,
    STORAGES,
    Damaged,
    Excess,
    Global,
    Opaque,
    Pairs,
    Storage,
    Stored,
)
from analyzers.checkpoints.reading.elements import normal_strides
from analyzers.checkpoints.reference import quoted
from analyzers.core import limits

# Advice for a file whose tensors cannot be read without the program that wrote it.
RESAVE = "in the program that wrote it, use safetensors.torch.save_model(model, 'model.safetensors')"
_OVERFLOW = 1 << 63
_LONGEST_BYTES = 100
_FIRST_ARGUMENTS = 4  # functions that rebuild tensors take the storage among these
_REBUILD = "torch._utils._rebuild"
_TYPED = ("restore_type_tag", "build_intlist", "build_tensorlist", "build_doublelist", "build_boollist")
# Functions that create an object of the class in their first argument; the object is named after its class.
_CREATORS = frozenset({
    "copyreg._reconstructor", "copy_reg._reconstructor", "copyreg.__newobj__", "copyreg.__newobj_ex__", "functools.partial",
    "builtins.getattr", "__builtin__.getattr",
})  # fmt: skip


def made_by(function: Global | Opaque, arguments: tuple[Any, ...]) -> Opaque:
    """Describe a call of ``function`` without making it; a call with a storage or tensor yields a tensor that cannot be read."""
    name = function.name
    if name in _CREATORS and arguments and isinstance(arguments[0], Global | Opaque):
        name = arguments[0].name
    first = arguments[:_FIRST_ARGUMENTS]
    builds = name.startswith(_REBUILD) or any(isinstance(each, Storage | Stored) or _is_faulty(each) for each in first)
    return Opaque(name, _unknown_tensor(name) if builds else "")


def _is_faulty(value: Any) -> bool:
    return type(value) is Opaque and bool(value.fault)


def _unknown_tensor(name: str) -> str:
    """Explain why a tensor that ``name`` builds cannot be read, and what to do."""
    return f"a tensor built by {quoted(name)}, which Mantissa does not know: {RESAVE}"


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, *rest: Any, dtype: str = "") -> Stored | Opaque:
    """Describe a tensor, with every argument checked against the others and the storage. rest: requires_grad, hooks, metadata."""
    if type(storage) is Opaque:
        return Opaque(storage.name, storage.fault or _unknown_tensor(storage.name))
    if type(storage) is not Storage:
        raise Damaged("a tensor is built from something other than a storage")
    dtype = dtype or storage.dtype
    if type(shape) is not tuple or type(strides) is not tuple or len(shape) != len(strides):
        raise Damaged("a tensor's shape and strides are not tuples of the same length")
    if len(shape) > limits.TENSOR_DIMENSIONS:
        raise Excess(f"holds a tensor of {len(shape):,} dimensions, more than {limits.TENSOR_DIMENSIONS}.")
    if any(type(number) is not int or not 0 <= number < _OVERFLOW for number in (offset, *shape, *strides)):
        raise Damaged("a tensor's shape, strides and offset are not whole numbers from 0 on")
    elements = last = 1
    for length, stride in zip(shape, strides, strict=True):
        elements, last = elements * (length or 1), last + (length - 1) * stride
        if elements * ITEMSIZES[dtype] >= _OVERFLOW:
            raise Damaged("a tensor has more than 2^63 bytes")
    if type(rest[-1] if len(rest) > 2 else None) is Pairs and any(value is not False for _, value in rest[-1]):
        return Opaque("a conjugated tensor", "a tensor to be conjugated or negated while it is loaded, which Mantissa does not do")
    if 0 in shape:
        return Stored(storage.key, dtype, shape, None, 0, 0)
    if (offset + last) * ITEMSIZES[dtype] > storage.nbytes:
        raise Damaged("a tensor reaches beyond the end of its storage")
    return Stored(storage.key, dtype, shape, normal_strides(shape, strides), offset * ITEMSIZES[dtype], last * ITEMSIZES[dtype])


def _tensor_v3(storage: Any, offset: Any, shape: Any, strides: Any, grad: Any, hooks: Any, dtype: Any, *metadata: Any) -> Stored | Opaque:
    name = dtype.name.removeprefix("torch.") if type(dtype) is Global else ""
    if name not in ITEMSIZES:
        raise Damaged("a tensor's dtype is not one")
    return _tensor(storage, offset, shape, strides, grad, hooks, *metadata, dtype=name)


def _parameter(tensor: Any, *_: Any) -> Stored | Opaque:
    if type(tensor) is Opaque:
        tensor.fault = tensor.fault or _unknown_tensor(tensor.name)
    elif type(tensor) is not Stored:
        raise Damaged("a parameter is built from something other than a tensor")
    return tensor  # type: ignore[no-any-return]


def _from_device(tensor: Any, dtype: Any, *_: Any) -> Stored | Opaque:
    if type(tensor) is not Stored or type(dtype) is not Global:
        raise Damaged("a device's tensor is built from something other than a tensor and a dtype")
    if dtype.name != f"torch.{tensor.dtype}":
        return Opaque("a converted tensor", "a tensor to be converted while it is loaded, which Mantissa does not do: save it from the CPU")
    return tensor


def _from_type(function: Any, kind: Any, arguments: Any, _: Any) -> Stored | Opaque:
    """Describe a tensor with attributes, or of a subclass: one that is rebuilt like any tensor has the same bytes."""
    if type(kind) not in (Global, Opaque) or type(arguments) is not tuple or type(function) not in (Global, Opaque):
        raise Damaged("a tensor with attributes is built from something other than a tensor")
    maker = MAKERS.get(function.name) if type(function) is Global and function.name.startswith(_REBUILD) else None
    if maker is None:
        name = function.name if kind.name == "torch.Tensor" else kind.name
        return Opaque(name, _unknown_tensor(name))
    return maker(*arguments)  # type: ignore[no-any-return]


def _mapping(pairs: Any = ()) -> Pairs:
    """Describe an OrderedDict: empty, or from a list of pairs."""
    if (pairs and type(pairs) is not list) or any(type(pair) not in (tuple, list) or len(pair) != 2 for pair in pairs):
        raise Damaged("an OrderedDict is built from something other than a list of pairs")
    return Pairs((key, value) for key, value in pairs)


def _listed(values: Any = (), *_: Any) -> list[Any]:
    """Describe a set, which is not hashed."""
    if type(values) not in (tuple, list):
        raise Damaged("a set is built from something other than its members")
    return list(values)


def _size(lengths: Any = ()) -> tuple[Any, ...]:
    return tuple(_listed(lengths))


def _first(value: Any, *_: Any) -> Any:
    """Return a container of TorchScript, with or without its type."""
    return value


def _bytes(text: Any = None, *encoding: Any) -> bytes | None:
    """Describe bytes as protocols before 3 write them; long ones cannot be part of a name."""
    if type(text) is not str or len(text) > _LONGEST_BYTES or encoding != ("latin1",):
        return None
    return text.encode("latin-1", "replace")


def _nothing(*_: Any) -> None:
    """Describe a value that no tensor depends on."""


MAKERS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys((f"{_REBUILD}_tensor", f"{_REBUILD}_tensor_v2"), _tensor),
    f"{_REBUILD}_tensor_v3": _tensor_v3,
    **dict.fromkeys((f"{_REBUILD}_parameter", f"{_REBUILD}_parameter_with_state", "torch.nn.parameter.Parameter"), _parameter),
    f"{_REBUILD}_device_tensor_from_cpu_tensor": _from_device,
    **dict.fromkeys(("torch._tensor._rebuild_from_type", "torch._tensor._rebuild_from_type_v2"), _from_type),
    "torch.tensor._rebuild_from_type": _from_type,
    "torch.Size": _size,
    "collections.OrderedDict": _mapping,
    "collections.Counter": lambda *_: Pairs(),  # the counts of a scheduler hold no tensors
    "_codecs.encode": _bytes,
    **{f"torch.jit._pickle.{name}": _first for name in _TYPED},
    **dict.fromkeys(("torch.device", "torch.serialization._get_layout"), _nothing),
    **{f"{module}.{name}": _nothing for module in ("builtins", "__builtin__") for name in ("complex", "bytearray")},
    **{f"{module}.{name}": _listed for module in ("builtins", "__builtin__") for name in ("set", "frozenset")},
}
_SCHEMES = ("per_tensor_affine", "per_tensor_symmetric", "per_channel_affine", "per_channel_symmetric", "sparse_coo", "strided", "Tensor")
# Every name that a state dict of torch may hold.
KNOWN = frozenset({*MAKERS, *STORAGES, *(f"torch.{name}" for name in (*ITEMSIZES, *DTYPES, *_SCHEMES))})
