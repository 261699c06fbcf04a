"""What a checkpoint's headers say about each tensor."""

from dataclasses import dataclass
from math import prod

# Bits per element, by safetensors dtype name. These are all the dtypes the format defines.
DTYPE_BITS = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32,
    "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip

# Dtypes whose values are plain binary floats, one per element: the ones float statistics speak about.
FLOAT_DTYPES = frozenset({"F64", "F32", "BF16", "F16", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"})


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a checkpoint.

    file: index into ``Checkpoint.files``; offset: absolute, in bytes, in that file; nbytes: its length there.
    role: embedding, attention, mlp, expert, router, norm, head or other (`names.role`).
    layer: the number of the block it belongs to, if its name has one.
    buffer: True when it is no trained parameter (`names.is_buffer`).
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

    @property
    def elements(self) -> int:
        """Number of elements; 1 for a scalar, 0 for an empty tensor."""
        return prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes per element; 0 for the sub-byte dtypes, which have no whole number."""
        return DTYPE_BITS[self.dtype] // 8
