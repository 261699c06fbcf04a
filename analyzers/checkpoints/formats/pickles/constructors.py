"""Describes the results of the classes and functions that build a state dict, as functions from arguments to descriptions (`objects`).

A pickle names classes and functions and says with which arguments to call them. The few that `torch.save` uses for state
dicts are in `GLOBALS`, each with what it means here: a dtype, a kind of storage, or a function of this module from
arguments to a description. A call of anything else becomes `Foreign`, which keeps its name and discards its arguments.
"""

from collections.abc import Callable
from math import prod
from typing import Any

from analyzers.checkpoints.formats.pickles.faults import RESAVE, Damaged, Excess
from analyzers.checkpoints.formats.pickles.objects import (
    OPAQUE,
    Constructor,
    Dtype,
    Entries,
    Foreign,
    Members,
    Opaque,
    Storage,
    StorageType,
    Stored,
    TensorType,
    Unknown,
)
from analyzers.checkpoints.reading.elements import normal_strides
from analyzers.checkpoints.reference import quoted
from analyzers.core import limits
from analyzers.core.terminal import plural

_OVERFLOW = 1 << 63
_LONGEST_BYTES = 100


def made_by(function: Unknown | Foreign | Constructor | TensorType, arguments: tuple[Any, ...]) -> Foreign:
    """Describe a call of ``function`` without making it; a call with a storage or tensor yields a tensor that cannot be read."""
    name = function.name
    if name in _MAKERS and arguments and isinstance(arguments[0], Unknown | Foreign):
        name = arguments[0].name
    builds = any(type(each) in (Storage, Stored) or (type(each) is Foreign and each.fault) for each in arguments[:_FIRST_ARGUMENTS])
    return Foreign(name, _unknown_tensor(name) if builds else None)


def _unknown_tensor(name: str) -> str:
    """Explain why a tensor that ``name`` builds cannot be read, and what to do."""
    module, _, kind = name.rpartition(".")
    if kind in _SHARDED and module.startswith("torch.distributed"):
        return (
            f"a {kind} ({quoted(name)}), of which each process saved a part: gather it with full_tensor(), or save "
            "get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)) of torch.distributed.checkpoint.state_dict"
        )
    return f"a tensor built by {quoted(name)}, which Mantissa does not know: {RESAVE}"


def _numel(shape: Any) -> int | None:
    """Return the number of elements of a tensor of ``shape``; None if ``shape`` is not a valid shape."""
    if type(shape) is not tuple or len(shape) > limits.TENSOR_DIMENSIONS:
        return None
    if any(type(length) is not int or not 0 <= length < _OVERFLOW for length in shape):
        return None
    elements = prod(shape)
    return elements if elements < _OVERFLOW else None


def _stored(storage: Any, dtype: Dtype | None, offset: Any, shape: Any, strides: Any) -> Stored | Foreign:
    """Describe a tensor, with every argument checked against the others and the storage."""
    if type(storage) is Foreign:
        return Foreign(storage.name, storage.fault or _unknown_tensor(storage.name), _numel(shape))
    if type(storage) is not Storage:
        raise Damaged("a tensor is built from something other than a storage")
    dtype = dtype or storage.dtype
    if type(shape) is not tuple or type(strides) is not tuple or len(shape) != len(strides):
        raise Damaged("a tensor's shape and strides are not tuples of the same length")
    if len(shape) > limits.TENSOR_DIMENSIONS:
        raise Excess(f"holds a tensor of {len(shape):,} dimensions, more than {limits.TENSOR_DIMENSIONS}.")
    elements, last = 1, 0
    for number in (offset, *shape, *strides):
        if type(number) is not int or not 0 <= number < _OVERFLOW:
            raise Damaged("a tensor's shape, strides and offset are not whole numbers from 0 on")
    for length, stride in zip(shape, strides, strict=True):
        elements *= length or 1
        last += (length - 1) * stride
        if elements * dtype.itemsize >= _OVERFLOW:
            raise Damaged("a tensor has more than 2^63 bytes")
    base = storage.first * storage.dtype.itemsize
    if 0 in shape:
        return Stored(storage.key, dtype, shape, None, base, 0)
    if (offset + last + 1) * dtype.itemsize > storage.numel * storage.dtype.itemsize:
        raise Damaged("a tensor reaches beyond the end of its storage")
    nbytes = (last + 1) * dtype.itemsize
    return Stored(storage.key, dtype, shape, normal_strides(shape, strides), base + offset * dtype.itemsize, nbytes)


def _plain(metadata: Any, tensor: Stored | Foreign) -> Stored | Foreign:
    if isinstance(metadata, Entries) and any(value is not False for value in metadata[1::2]):
        fault = "a tensor to be conjugated or negated while it is loaded, which Mantissa does not do: save a copy of it"
        return Foreign("a conjugated tensor", fault, _numel(tensor.shape) if type(tensor) is Stored else None)
    return tensor


def _count(args: tuple[Any, ...], *allowed: int) -> None:
    if len(args) not in allowed:
        raise Damaged(f"a constructor is given {plural(len(args), 'argument')}")


def _rebuild_tensor(args: tuple[Any, ...]) -> Stored | Foreign:
    _count(args, 4)
    return _stored(args[0], None, args[1], args[2], args[3])


def _rebuild_tensor_v2(args: tuple[Any, ...]) -> Stored | Foreign:
    _count(args, 6, 7)
    return _plain(args[6] if len(args) > 6 else None, _stored(args[0], None, args[1], args[2], args[3]))


def _rebuild_tensor_v3(args: tuple[Any, ...]) -> Stored | Foreign:
    _count(args, 7, 8)
    if type(args[6]) is not Dtype:
        raise Damaged("a tensor's dtype is not one")
    return _plain(args[7] if len(args) > 7 else None, _stored(args[0], args[6], args[1], args[2], args[3]))


def _parameter(args: tuple[Any, ...]) -> Stored | Foreign:
    _count(args, 1, 2, 3, 4)  # torch.nn.Parameter itself, and the two functions that rebuild it
    tensor: Stored | Foreign = args[0]
    if type(tensor) is Foreign and tensor.fault is None:
        tensor.fault = _unknown_tensor(tensor.name)
    elif type(tensor) is not Stored and type(tensor) is not Foreign:
        raise Damaged("a parameter is built from something other than a tensor")
    return tensor


def _from_device(args: tuple[Any, ...]) -> Stored | Foreign:
    _count(args, 4)
    if type(args[0]) is not Stored or type(args[1]) is not Dtype:
        raise Damaged("a device's tensor is built from something other than a tensor and a dtype")
    if args[0].dtype != args[1]:
        fault = "a tensor to be converted while it is loaded, which Mantissa does not do: save it from the CPU"
        return Foreign("a converted tensor", fault, _numel(args[0].shape))
    return args[0]


def _from_type(args: tuple[Any, ...]) -> Stored | Foreign:
    """Describe a tensor with attributes, or of a subclass.

    args: the function that rebuilds it, its class, that function's arguments, the attributes.

    A subclass of unknown name that is rebuilt like any tensor has the same bytes: it is read as a plain tensor.
    """
    _count(args, 4)
    function, kind, arguments, _ = args
    if type(function) in (Unknown, Foreign) and type(kind) in (TensorType, Unknown, Foreign):
        name = function.name if type(kind) is TensorType else kind.name
        wrapper = function.name == "torch._utils._rebuild_wrapper_subclass" and type(arguments) is tuple and len(arguments) > 2
        return Foreign(name, _unknown_tensor(name), _numel(arguments[2]) if wrapper else None)
    rebuilds = type(function) is Constructor and function.name.startswith("torch._utils._rebuild")
    if not rebuilds or type(kind) not in (TensorType, Unknown) or type(arguments) is not tuple:
        raise Damaged("a tensor with attributes is built from something other than a tensor")
    made: Stored | Foreign = function.make(arguments)
    return made


def _mapping(args: tuple[Any, ...]) -> Entries:
    """Describe an OrderedDict: empty, or from a list of pairs."""
    _count(args, 0, 1)
    found = Entries()
    pairs: Any = args[0] if args else []
    if type(pairs) is not list:
        raise Damaged("an OrderedDict is built from something other than a list")
    for pair in pairs:
        if type(pair) not in (tuple, list) or len(pair) != 2:
            raise Damaged("an OrderedDict is built from something other than pairs")
        found.extend(pair)
    return found


def _size(args: tuple[Any, ...]) -> tuple[Any, ...]:
    _count(args, 0, 1)
    lengths: Any = args[0] if args else ()
    if type(lengths) not in (tuple, list):
        raise Damaged("a torch.Size is built from something other than numbers")
    return tuple(lengths)


def _set(args: tuple[Any, ...]) -> Members:
    _count(args, 0, 1)
    members: Any = args[0] if args else []
    if type(members) not in (tuple, list, Members):
        raise Damaged("a set is built from something other than its members")
    return Members(members)


def _typed(args: tuple[Any, ...]) -> Any:
    """Return a container of TorchScript, with or without its type."""
    _count(args, 1, 2)
    return args[0]


def _ignored(_: tuple[Any, ...]) -> Opaque:
    return OPAQUE


def _bytes(args: tuple[Any, ...]) -> bytes | Opaque:
    """Describe bytes as protocols before 3 write them; long ones cannot be part of a name."""
    text = args[0] if args else None
    if type(text) is not str or len(text) > _LONGEST_BYTES or args[1:] != ("latin1",):
        return OPAQUE
    return text.encode("latin-1", "replace")


def _counter(_: tuple[Any, ...]) -> Entries:
    return Entries()  # the counts of a scheduler hold no tensors


def _without_values(what: str, name: str, shape: Callable[[tuple[Any, ...]], Any]) -> Constructor:
    """Return a constructor of tensors that are not plain memory.

    name: function of torch._utils; shape: finds the shape among its arguments.
    """
    function = f"torch._utils.{name}"
    fault = f"{what} ({function}), which Mantissa does not read: save a dense copy of it, with float values"
    return Constructor(function, lambda args: Foreign(function, fault, _numel(shape(args))))


def _sparse_shape(args: tuple[Any, ...]) -> Any:
    """Return the shape of a sparse tensor, the first tuple after its indices and values."""
    parts = args[1] if len(args) > 1 and type(args[1]) is tuple else ()
    return next((part for part in parts if type(part) is tuple), None)


def _nested_shape(args: tuple[Any, ...]) -> Any:
    """Return the shape of the buffer of a nested tensor."""
    return args[0].shape if args and type(args[0]) is Stored else None


# Functions that create an object of the class in their first argument; the object is named after its class.
_MAKERS = frozenset({
    "copyreg._reconstructor", "copy_reg._reconstructor", "copyreg.__newobj__", "copyreg.__newobj_ex__", "functools.partial",
    "builtins.getattr", "__builtin__.getattr",
})  # fmt: skip
_TYPED = ("restore_type_tag", "build_intlist", "build_tensorlist", "build_doublelist", "build_boollist")
_SHARDED = frozenset({"DTensor", "ShardedTensor"})
_FIRST_ARGUMENTS = 4  # functions that rebuild tensors take the storage among these


_DTYPES = {
    name: Dtype(name, itemsize)
    for itemsize, names in {
        1: "uint8 int8 bool qint8 quint8 quint4x2 quint2x4 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu "
        "float4_e2m1fn_x2 bits8 bits1x8 bits2x4 bits4x2",
        2: "float16 bfloat16 int16 uint16 bits16",
        4: "float32 int32 uint32 qint32 complex32",
        8: "float64 int64 uint64 complex64",
        16: "complex128",
    }.items()
    for name in names.split()
}

_STORAGES = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8", "ByteStorage": "uint8",
    "BoolStorage": "bool", "ComplexFloatStorage": "complex64", "ComplexDoubleStorage": "complex128", "UntypedStorage": "uint8",
    "QInt8Storage": "qint8", "QUInt8Storage": "quint8", "QInt32Storage": "qint32", "QUInt4x2Storage": "quint4x2",
    "QUInt2x4Storage": "quint2x4",
}  # fmt: skip

_CONSTRUCTORS = (
    Constructor("torch._utils._rebuild_tensor", _rebuild_tensor),
    Constructor("torch._utils._rebuild_tensor_v2", _rebuild_tensor_v2),
    Constructor("torch._utils._rebuild_tensor_v3", _rebuild_tensor_v3),
    Constructor("torch._utils._rebuild_parameter", _parameter),
    Constructor("torch._utils._rebuild_parameter_with_state", _parameter),
    Constructor("torch._utils._rebuild_device_tensor_from_cpu_tensor", _from_device),
    _without_values("a quantized tensor", "_rebuild_qtensor", lambda args: args[2] if len(args) > 2 else None),
    _without_values("a sparse tensor", "_rebuild_sparse_tensor", _sparse_shape),
    _without_values("a nested tensor", "_rebuild_nested_tensor", _nested_shape),
    _without_values("a tensor without data", "_rebuild_meta_tensor_no_storage", lambda args: args[1] if len(args) > 1 else None),
    Constructor("torch._tensor._rebuild_from_type", _from_type),
    Constructor("torch._tensor._rebuild_from_type_v2", _from_type),
    Constructor("torch.tensor._rebuild_from_type", _from_type),
    Constructor("torch.nn.parameter.Parameter", _parameter),
    Constructor("torch.Size", _size),
    Constructor("torch.device", _ignored),
    Constructor("torch.serialization._get_layout", _ignored),
    Constructor("collections.OrderedDict", _mapping),
    Constructor("collections.Counter", _counter),
    Constructor("_codecs.encode", _bytes),
    *(Constructor(f"torch.jit._pickle.{name}", _typed) for name in _TYPED),
    *(Constructor(f"{module}.{name}", _ignored) for module in ("builtins", "__builtin__") for name in ("complex", "bytearray")),
    *(Constructor(f"{module}.{name}", _set) for module in ("builtins", "__builtin__") for name in ("set", "frozenset")),
)  # fmt: skip

# The globals that a pickle may name: (module, name) -> its meaning.
GLOBALS: dict[tuple[str, str], Constructor | Dtype | StorageType | TensorType | Opaque] = {
    **{("torch", name): dtype for name, dtype in _DTYPES.items()},
    **{(module, name): StorageType(_DTYPES[of]) for module in ("torch", "torch.cuda", "torch.storage") for name, of in _STORAGES.items()},
    **{(each.name.rpartition(".")[0], each.name.rpartition(".")[2]): each for each in _CONSTRUCTORS},
    ("torch", "Tensor"): TensorType("torch.Tensor"),
    **{
        ("torch", name): OPAQUE
        for name in ("per_tensor_affine", "per_tensor_symmetric", "per_channel_affine", "per_channel_symmetric", "sparse_coo", "strided")
    },
}
