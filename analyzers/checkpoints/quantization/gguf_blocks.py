"""GGUF's quantized types: blocks that hold codes and scales together, decoded by the gguf library."""

from dataclasses import dataclass
from functools import cache
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from analyzers.checkpoints.quantization.candidate import Fit
from analyzers.checkpoints.quantization.decoded_file import DecodedFile
from analyzers.checkpoints.quantization.quantized import Field, Floats, Packing, Quantized, Read, Run
from analyzers.checkpoints.tensor import DTYPE_BITS, Tensor


class _Codes(NamedTuple):
    """The codes of a type whose values lie on a uniform grid in each block: their bytes in it, and the number of levels.

    low, high: bytes of the lowest and the highest code.
    """

    start: int
    stop: int
    levels: int
    low: int = 0
    high: int = 0xFF


_UNIFORM = {
    "Q4_0": _Codes(2, 18, 16), "Q4_1": _Codes(4, 20, 16), "Q5_0": _Codes(2, 22, 32), "Q5_1": _Codes(4, 24, 32),
    "Q8_0": _Codes(2, 34, 256, 0x80, 0x7F), "Q2_K": _Codes(16, 80, 4), "Q3_K": _Codes(0, 96, 8), "Q4_K": _Codes(16, 144, 16),
    "Q5_K": _Codes(16, 176, 32), "Q6_K": _Codes(0, 192, 64), "TQ1_0": _Codes(0, 52, 3), "TQ2_0": _Codes(0, 64, 4),
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class GgufBlocks(Quantized):
    """A tensor of a GGML type. length, size: values and bytes of a block; table: numbers of the levels of a uniform grid."""

    length: int = 0
    size: int = 0

    @property
    def bits(self) -> int:
        """Bits per value, rounded up."""
        return -(-8 * self.size // self.length)

    @property
    def group(self) -> int:
        """Number of values of a block."""
        return self.length

    @property
    def has_columns(self) -> bool:
        """Return whether some columns can be computed alone."""
        return False

    @property
    def label(self) -> str:
        """What it is, in words."""
        return f"GGUF {self.dtype}, {8 * self.size / self.length:.4g} bits per weight"

    @property
    def consistent(self) -> bool:
        """Return whether the codes are whole blocks."""
        return self.elements % self.length == 0 and self.codes.nbytes == self.elements // self.length * self.size

    def nbytes(self, first: int, stop: int) -> int:
        """Bytes to read for elements ``first`` to ``stop`` - 1."""
        return (-(-stop // self.length) - first // self.length) * self.size if first < stop else 0

    def load(self, read: Read, first: int, stop: int) -> Run:
        """Read the blocks of elements ``first`` to ``stop`` - 1."""
        begin, codes = first // self.length, self.codes
        flat = Tensor(codes.name, "U8", (codes.nbytes,), codes.file, codes.offset, codes.nbytes, codes.role, codes.layer, False)
        return Run(first, stop, read(flat, begin * self.size, self.nbytes(first, stop)), begin, _levels(1))

    def compute(self, field: Field, run: Run, first: int, stop: int, out: Floats) -> None:
        """Set ``out`` (stop - first,) to the values of a run, or to their place on a uniform grid: value = level x scale + bias."""
        begin, end = first // self.length, -(-stop // self.length)
        blocks = run.packed.reshape(-1, self.size)[begin - run.base : end - run.base]
        within = slice(first - begin * self.length, stop - begin * self.length)
        if field == "value":
            out[:] = _decoded(blocks, self.dtype)[within]
            return
        codes = _UNIFORM.get(self.dtype)
        if codes is None or field == "zero":
            out[:] = np.nan if codes is None else 0
            return
        out[:] = self._filled(blocks, codes, codes.low)[within]
        if field == "scale":
            with np.errstate(all="ignore"):
                out[:] = (self._filled(blocks, codes, codes.high)[within] - out) / np.float32(codes.levels - 1)

    def _filled(self, blocks: NDArray[np.uint8], codes: _Codes, code: int) -> Floats:
        """Return the values that one code has in place of all."""
        filled = blocks.copy()
        filled[:, codes.start : codes.stop] = code
        return _decoded(filled, self.dtype)


def gguf_blocks(codes: Tensor, file: DecodedFile) -> Fit | None:
    """Fit a tensor whose dtype is the name of a GGML type that the gguf library decodes."""
    length, size = _block(codes.dtype)
    if not length or not codes.shape or codes.shape[-1] % length:
        return None
    shape, levels = (1, prod(codes.shape[:-1]), codes.shape[-1]), _UNIFORM[codes.dtype].levels if codes.dtype in _UNIFORM else 2
    blocks = GgufBlocks(
        "GGUF", codes.dtype, codes, shape, Packing(8), _levels(levels), file=file, offset=file.size, length=length, size=size
    )  # fmt: skip
    return Fit(blocks, codes.shape)


def _decoded(blocks: NDArray[np.uint8], dtype: str) -> Floats:
    """Return the values of (n, size) blocks, flat."""
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    with np.errstate(all="ignore"):
        values: Floats = dequantize(blocks.reshape(1, -1), GGMLQuantizationType[dtype])  # rows would be decoded few at a time
    return values.reshape(-1)


@cache
def _levels(number: int) -> Floats:
    return np.arange(number, dtype=np.float32)


@cache
def _block(dtype: str) -> tuple[int, int]:
    """Return values and bytes of a block of a GGML type; zeros if it is none, or the library does not decode it."""
    if dtype in DTYPE_BITS:
        return 0, 0
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        length, size = GGML_QUANT_SIZES[GGMLQuantizationType[dtype]]
        _decoded(np.zeros((1, size), np.uint8), dtype)
    except (KeyError, NotImplementedError):
        return 0, 0
    return length, size
