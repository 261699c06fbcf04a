"""GGUF's quantized types: blocks that hold codes and scales together, decoded by the gguf library."""

from dataclasses import dataclass
from functools import cache
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from analyzers.checkpoints.quantization.candidate import Fit
from analyzers.checkpoints.quantization.decoded_file import DecodedFile
from analyzers.checkpoints.quantization.quantized import PIECE, Floats, Packing, Quantized, Read, Run
from analyzers.checkpoints.tensor import DTYPE_BITS, Tensor


class _Codes(NamedTuple):
    """The codes of a type whose values lie on a uniform grid in each block: their first byte in it, and the number of levels.

    ends: codes of a block, of which the lowest and the highest take turns.
    """

    start: int
    levels: int
    ends: bytes


_ENDS = b"\0\xff"
_UNIFORM = {
    "Q4_0": _Codes(2, 16, _ENDS * 8), "Q4_1": _Codes(4, 16, _ENDS * 8), "Q8_0": _Codes(2, 256, b"\x80\x7f" * 16),
    "Q5_0": _Codes(2, 32, b"\xaa" * 4 + _ENDS * 8), "Q5_1": _Codes(4, 32, b"\xaa" * 4 + _ENDS * 8),  # bits, then the rest of the codes
    "Q2_K": _Codes(16, 4, _ENDS * 32), "Q3_K": _Codes(0, 8, _ENDS * 48), "Q4_K": _Codes(16, 16, _ENDS * 64),
    "Q5_K": _Codes(16, 32, _ENDS * 80), "Q6_K": _Codes(0, 64, _ENDS * 96),
    "TQ1_0": _Codes(0, 3, _ENDS * 26), "TQ2_0": _Codes(0, 4, _ENDS * 32),
}  # fmt: skip
_SHARING = 16  # consecutive values that share a scale in every type


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
        begin = first // self.length
        return Run(first, stop, read(self._packed(), begin * self.size, self.nbytes(first, stop)), begin, _levels(1))

    def with_parts(self, run: Run) -> Run:
        """Return a run with the scales and biases of a uniform grid, value = level x scale + bias; NaN of a type without one."""
        if run.parts.size:
            return run
        blocks, codes = run.packed.reshape(-1, self.size), _UNIFORM.get(self.dtype)
        parts = np.full((3, len(blocks) * self.length // _SHARING), np.nan, np.float32)
        if codes is not None:
            piece = PIECE // self.length
            for start in range(0, len(blocks), piece):
                ends = blocks[start : start + piece].copy()
                ends[:, codes.start : codes.start + len(codes.ends)] = np.frombuffer(codes.ends, np.uint8)
                low, high = _decoded(ends, self.dtype).reshape(-1, _SHARING)[:, :2].T
                with np.errstate(all="ignore"):
                    scale = (high - low) / np.float32(codes.levels - 1)
                at = start * self.length // _SHARING
                parts[:, at : at + low.size] = scale, np.zeros_like(low), low
        return run._replace(parts=parts, low=run.base * self.length // _SHARING)

    def compute(self, run: Run, first: int, stop: int, out: Floats) -> None:
        """Set ``out`` (stop - first,) to the values of a run."""
        if not run.packed.size:
            Quantized.compute(self, run, first, stop, out)
            return
        begin, end = first // self.length, -(-stop // self.length)
        blocks = run.packed.reshape(-1, self.size)[begin - run.base : end - run.base]
        out[:] = _decoded(blocks, self.dtype)[first - begin * self.length : stop - begin * self.length]


def gguf_blocks(codes: Tensor, file: DecodedFile) -> Fit | None:
    """Fit a tensor whose dtype is the name of a GGML type that the gguf library decodes."""
    length, size = _block(codes.dtype)
    if not length or not codes.shape or codes.shape[-1] % length:
        return None
    shape, levels = (1, prod(codes.shape[:-1]), codes.shape[-1]), _UNIFORM[codes.dtype].levels if codes.dtype in _UNIFORM else 2
    blocks = GgufBlocks(
        "GGUF", codes.dtype, codes, shape, Packing(8), _levels(levels), (1, _SHARING), file=file, offset=file.size, length=length, size=size
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
