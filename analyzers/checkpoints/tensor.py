"""Describes a tensor as the headers of a checkpoint do."""

from dataclasses import dataclass, field
from math import prod

from analyzers.checkpoints.repository import DecodingFile

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


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """A quantized tensor as it is stored, from which `quantization.quantized.Quantized` computes its values.

    layout: its name in `layouts.LAYOUTS`; dtype: of the codes, for people, such as "MXFP4"; shape: (matrices, rows, columns) in the order
    of the codes; file: of its values, None for a part of another one; offset: of its first value there, in bytes.
    """

    layout: str
    dtype: str
    codes: "Tensor"
    shape: tuple[int, int, int]
    file: DecodingFile | None = field(default=None, kw_only=True)
    offset: int = field(default=0, kw_only=True)

    @property
    def bits(self) -> int:
        """Bits of a code."""
        raise NotImplementedError

    @property
    def reads(self) -> int:
        """Number of reads that consecutive elements need."""
        raise NotImplementedError

    @property
    def elements(self) -> int:
        """Number of values."""
        return prod(self.shape)

    def nbytes(self, first: int, stop: int) -> int:
        """Bytes to read for elements ``first`` to ``stop`` - 1."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a checkpoint.

    file: index into ``Checkpoint.files``; offset: absolute byte offset of its first element in that file; nbytes: bytes of its elements.
    role: embedding, attention, mlp, expert, router, norm, head or other (`roles.role`). layer: the number of the block it belongs to, if
    its name has one. buffer: True if it is not a trained parameter (`roles.is_buffer`). stored: how it is stored if it is quantized;
    ``file`` then holds its codes, and dtype, offset and nbytes are those of its values in ``stored.file``, which decodes what is read.
    holds_scales: True if it belongs to the values of a quantized tensor (scales, zero points, ...), and so is not a parameter. strides:
    elements from one index of an axis to the next, at least 0, of a view that is not contiguous and row-major (`elements.read_elements`),
    else None.
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
    stored: Stored | None = None
    holds_scales: bool = False
    strides: tuple[int, ...] | None = None

    @property
    def elements(self) -> int:
        """Number of elements; 1 for a scalar, 0 for an empty tensor."""
        return prod(self.shape)

    @property
    def bits(self) -> int:
        """Bits per element as read; 0 for types stored in blocks that are not decoded."""
        return DTYPE_BITS.get(self.dtype, 0)

    @property
    def itemsize(self) -> int:
        """Bytes per element; 0 if that is not a whole number."""
        return self.bits // 8

    @property
    def stored_bits(self) -> int:
        """Bits per element as stored, without scales, rounded up."""
        return self.bits if self.stored is None else self.stored.bits

    @property
    def on_disk(self) -> "Tensor":
        """The tensor of a header that holds its values: the codes, if it is quantized."""
        return self if self.stored is None else self.stored.codes

    @property
    def stored_dtype(self) -> str:
        """Dtype in which it is stored, by the name of its codes if it is quantized, such as "MXFP4"."""
        return self.dtype if self.stored is None else self.stored.dtype

    @property
    def counted_as(self) -> str:
        """Dtype in which values are counted: float32 if they are `CONVERTED`, else as read."""
        return "F32" if self.converted else self.dtype

    @property
    def converted(self) -> bool:
        """Return whether plain floats are converted to fp32 on reading, where fp64 is rounded to nearest even."""
        return self.dtype in CONVERTED

    @property
    def read_as(self) -> str:
        """Dtype that its values are evidence of: float32 if they are `converted`, else as stored."""
        return "F32" if self.converted else self.stored_dtype

    @property
    def has_values(self) -> bool:
        """Return whether it has float values: plain floats, or decoded ones."""
        return self.dtype in FLOAT_DTYPES


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
