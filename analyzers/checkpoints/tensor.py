"""Describes a tensor as the headers of a checkpoint do."""

from dataclasses import dataclass
from math import prod

# Bits per element, by safetensors dtype name, for all dtypes that the format defines.
DTYPE_BITS = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32,
    "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip

# Rare dtypes of plain floats, which are converted to fp32 on reading
CONVERTED = frozenset({"F64", "F8_E4M3FNUZ", "F8_E5M2FNUZ"})

# Dtypes whose elements are plain binary floats, for which float statistics are computed.
FLOAT_DTYPES = frozenset({"F32", "BF16", "F16", "F8_E4M3", "F8_E5M2"}) | CONVERTED

# Additional dtypes for E2M1 codes packed two per byte with separate scales: 32 values per E8M0 scale, 16 per E4M3 scale.
PACKED_BITS = {"MXFP4": 4, "NVFP4": 4}


@dataclass(frozen=True, slots=True)
class Scale:
    """The scales of a tensor: value = code x scale (x or / factor), in float32.

    tensor: the scales, row-major; block: rows and columns of the weight's last two axes that share one scale, partial at the edges; factor:
    a global factor; divides: whether values are divided by it.
    """

    tensor: "Tensor"
    block: tuple[int, int]
    factor: "Tensor | None" = None
    divides: bool = False


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a checkpoint.

    file: index into ``Checkpoint.files``; offset: absolute byte offset of its first element in that file; nbytes: bytes of its elements.
    role: embedding, attention, mlp, expert, router, norm, head or other (`roles.role`). layer: the number of the block it belongs to, if
    its name has one. buffer: True if it is not a trained parameter (`roles.is_buffer`). scale: its scales, if it has any; holds_scales:
    True if it contains the scales of other tensors, and so is not a parameter (`scales.pair_scales`). strides: elements from one index of
    an axis to the next, at least 0, of a view that is not contiguous and row-major (`elements.read_elements`), else None.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: int
    offset: int
    nbytes: int
    role: str
    layer: int | None
    buffer: bool
    scale: Scale | None = None
    holds_scales: bool = False
    strides: tuple[int, ...] | None = None

    @property
    def elements(self) -> int:
        """Number of elements; 1 for a scalar, 0 for an empty tensor."""
        return prod(self.shape)

    @property
    def bits(self) -> int:
        """Bits per element as stored, without scales; 0 for types stored in blocks, such as the quantized types of GGUF."""
        return PACKED_BITS.get(self.dtype, 0) if self.scale is not None and self.dtype in PACKED_BITS else DTYPE_BITS.get(self.dtype, 0)

    @property
    def itemsize(self) -> int:
        """Bytes per element; 0 if that is not a whole number."""
        return self.bits // 8

    @property
    def counted_as(self) -> str:
        """Dtype in which values are counted: float32 if they are decoded with scales or `CONVERTED`, else as stored."""
        return "F32" if self.scale is not None else self.read_as

    @property
    def converted(self) -> bool:
        """Return whether plain floats are converted to fp32 on reading, where fp64 is rounded to nearest even."""
        return self.scale is None and self.dtype in CONVERTED

    @property
    def read_as(self) -> str:
        """Dtype of the values, before any scale: float32 if they are `converted`, else as stored."""
        return "F32" if self.converted else self.dtype

    @property
    def has_values(self) -> bool:
        """Return whether it has float values: plain floats, or codes with scales."""
        return self.scale is not None or self.dtype in FLOAT_DTYPES


def normal_strides(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return strides in the convention of `Tensor`: None for contiguous row-major, 0 on every axis whose stride does not matter."""
    if 0 in shape:
        return None
    expected = 1
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length > 1 and stride != expected:
            return tuple(s if n > 1 else 0 for n, s in zip(shape, strides, strict=True))
        expected *= length
    return None
