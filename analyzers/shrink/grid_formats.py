"""The formats of ``shrink --to grid``: how each stores a matrix as codes and scales, and what that restores.

* compressed-tensors, pack-quantized: ``X.weight_packed`` of int32 has the codes plus 2^(bits-1), the first in the lowest bits;
  ``X.weight_scale``, in the dtype of the weights, has one scale per row and group; ``X.weight_shape``.
* fp8 of transformers: ``X.weight`` of E4M3, and ``X.weight_scale_inv`` of fp32, one scale for 128 x 128 values.
* MXFP4 of gpt-oss, for ``X`` of (experts, inputs, outputs): ``X_blocks`` (experts, outputs, inputs / 32, 16) of E2M1, the first code in the
  low half of a byte, and ``X_scales`` of E8M0.

A value is code x scale in fp32, rounded to the dtype of the weights. A matrix is stored so only if that restores every bit of it.
"""

import re
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from analyzers.checkpoints import DTYPE_BITS, Tensor
from analyzers.numerics import BF16, FP8_E4M3, FP16, FP32, FloatFormat
from analyzers.numerics.conversions import fp32_of
from analyzers.numerics.formats import FP4_E2M1
from analyzers.numerics.grid_scales import fit_scales

Floats = NDArray[np.float32]
Array = NDArray[Any]

_HELD: dict[str, FloatFormat] = {"F32": FP32, "F16": FP16, "BF16": BF16}
_POWERS = (0, -127)  # spacing of E8M0
_BLOCK = 128
_MX = 32
# Loaders leave embeddings, heads, routers and norms as they are.
_LINEAR = ("attention", "mlp", "expert", "other")
_E4M3 = FP8_E4M3.decode()[:127].astype(np.float32)
_E2M1 = FP4_E2M1.decode()[:8].astype(np.float32)


class Part(NamedTuple):
    """A stored tensor that a matrix becomes. unit: bytes for each of its units (`GridFormat.unit`); 0 for one that is the same for all."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    unit: int

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return prod(self.shape) * DTYPE_BITS[self.dtype] // 8


class GridFormat(Protocol):
    """A format. Its units are the elements that are encoded together, contiguous in a matrix: a row, a band of rows, an expert."""

    @property
    def name(self) -> str:
        """The format in words."""

    @property
    def note(self) -> str:
        """A sentence that users of the format must know; may be empty."""

    def fits(self, tensor: Tensor) -> bool:
        """Return whether the format can hold a tensor of this name, dtype and shape."""

    def unit(self, tensor: Tensor) -> int:
        """Return the number of elements of a unit."""

    def parts(self, tensor: Tensor, name: str) -> tuple[Part, ...]:
        """Return the tensors that are stored for ``tensor``, whose name in its file is ``name``."""

    def encode(self, tensor: Tensor, codes: Array) -> tuple[Array, ...] | None:
        """Return the bytes of each part for whole units, given by their patterns; None if a value would change."""

    def decode(self, tensor: Tensor, parts: tuple[Array, ...]) -> Array:
        """Return the patterns of whole units from the bytes of the parts."""

    def config(self, kept: list[str]) -> dict[str, Any]:
        """Return config.json's ``quantization_config``. kept: the modules whose weight is stored as before."""


def _matrix(tensor: Tensor) -> bool:
    """Return whether a tensor is the matrix of a linear layer, by its name and shape."""
    plain = tensor.dtype in _HELD and len(tensor.shape) == 2 and tensor.elements > 0
    return plain and tensor.name.endswith(".weight") and tensor.role in _LINEAR


class _Fit(NamedTuple):
    """Values as codes: indices into levels (groups, n), their signs, and a scale per group."""

    codes: Array
    negative: Array
    scales: Floats

    def patterns(self, levels: Floats, dtype: str) -> Array:
        """Return the patterns of level x scale, (groups, n)."""
        with np.errstate(all="ignore"):
            magnitudes = levels[self.codes] * self.scales[:, None]
            products = np.where(self.negative, -magnitudes, magnitudes)
            if dtype == "F16":
                return products.astype(np.float16).view(np.uint16)
        whole: Array = products.view(np.uint32)
        return whole if dtype == "F32" else ((whole + 0x7FFF + ((whole >> 16) & 1)) >> 16).astype(np.uint16)


def _fit(groups: Array, dtype: str, scale: tuple[int, int], levels: Floats, positive: int | None = None) -> _Fit | None:
    """Return the codes and scales of values given by their patterns, (groups, n), or None if a bit would change."""
    values = fp32_of(groups, dtype).view(np.float32)
    fit = _Fit(np.empty(values.shape, np.uint8), np.signbit(values), np.empty(len(values), np.float32))
    number = fit_scales(values, _spacing(_HELD[dtype]), scale, levels, positive or len(levels), fit.scales, fit.codes)
    return fit if number == len(values) and np.array_equal(fit.patterns(levels, dtype), groups) else None


def _spacing(held: FloatFormat) -> tuple[int, int]:
    return held.mantissa_bits, 1 - held.bias


def _bytes(part: Array) -> Array:
    return np.ascontiguousarray(part).reshape(-1).view(np.uint8)


def _halves(codes: Array) -> Array:
    """Pack pairs of 4-bit codes, the first in the low half of a byte."""
    pairs = codes.reshape(-1, 2)
    return _bytes(pairs[:, 0] | pairs[:, 1] << 4)


def _unpacked(packed: Array) -> Array:
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(-1)


_UNPROVEN = (
    "The integers are stored as compressed-tensors defines its format pack-quantized, and were read back by that definition. transformers "
    "needs the package compressed-tensors to load them: load the folder once before you delete the source."
)


@dataclass(frozen=True)
class PackedIntegers:
    """Symmetric integers of 4 or 8 bits with a scale per group of a row, 0 for all of it: compressed-tensors, ``pack-quantized``."""

    bits: int
    group: int
    note: str = _UNPROVEN

    @property
    def name(self) -> str:
        """The format in words."""
        return f"int{self.bits}, {f'groups of {self.group}' if self.group else 'a scale per row'}"

    @property
    def _levels(self) -> Floats:
        return np.arange(self._offset + 1, dtype=np.float32)

    @property
    def _offset(self) -> int:
        return 1 << (self.bits - 1)

    def fits(self, tensor: Tensor) -> bool:
        """Return whether it is the matrix of a linear layer, of whole groups and whole int32."""
        return _matrix(tensor) and tensor.shape[1] % max(self.group, 32 // self.bits) == 0

    def unit(self, tensor: Tensor) -> int:
        """Return the elements of a row."""
        return tensor.shape[1]

    def parts(self, tensor: Tensor, name: str) -> tuple[Part, ...]:
        """Return packed codes, scales and the shape."""
        rows, columns = tensor.shape
        packed, groups = columns * self.bits // 32, columns // self.group if self.group else 1
        return (
            Part(f"{name}_packed", "I32", (rows, packed), 4 * packed),
            Part(f"{name}_scale", tensor.dtype, (rows, groups), groups * DTYPE_BITS[tensor.dtype] // 8),
            Part(f"{name}_shape", "I64", (2,), 0),
        )

    def encode(self, tensor: Tensor, codes: Array) -> tuple[Array, ...] | None:
        """Pack whole rows. A negative zero has no code."""
        groups = codes.reshape(-1, self.group or tensor.shape[1])
        fit = _fit(groups, tensor.dtype, _spacing(_HELD[tensor.dtype]), self._levels, self._offset)
        if fit is None or np.any(fit.negative & (fit.codes == 0)):
            return None
        signed = np.where(fit.negative, -fit.codes.astype(np.int16), fit.codes)
        raised = (signed + self._offset).astype(np.uint8)
        ones = _Fit(np.ones((len(groups), 1), np.uint8), np.zeros((len(groups), 1), np.bool_), fit.scales)
        scales = ones.patterns(self._levels, tensor.dtype)
        return _bytes(raised) if self.bits == 8 else _halves(raised), _bytes(scales), _bytes(np.array(tensor.shape, np.int64))

    def decode(self, tensor: Tensor, parts: tuple[Array, ...]) -> Array:
        """Return the patterns of whole rows."""
        raised = parts[0] if self.bits == 8 else _unpacked(parts[0])
        signed = raised.astype(np.int16).reshape(-1, self.group or tensor.shape[1]) - self._offset
        scales = fp32_of(parts[1].view(f"u{DTYPE_BITS[tensor.dtype] // 8}"), tensor.dtype).view(np.float32)
        return _Fit(np.abs(signed).astype(np.uint8), signed < 0, scales).patterns(self._levels, tensor.dtype)

    def config(self, kept: list[str]) -> dict[str, Any]:
        """Return the settings of compressed-tensors."""
        weights = {
            "num_bits": self.bits, "type": "int", "symmetric": True, "strategy": "group" if self.group else "channel",
            "group_size": self.group or None, "dynamic": False, "actorder": None, "block_structure": None, "observer": "minmax",
            "observer_kwargs": {},
        }  # fmt: skip
        group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
        return {
            "quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
            "config_groups": {"group_0": group}, "ignore": kept, "kv_cache_scheme": None,
        }  # fmt: skip


@dataclass(frozen=True)
class Fp8Blocks:
    """E4M3 with an fp32 scale for 128 x 128 values, ``quant_method: fp8`` of transformers."""

    name: str = "fp8, blocks of 128 x 128"
    note: str = (
        "transformers restores these weights when it loads them, as config.json says (dequantize). Without that setting it multiplies in "
        "fp8 on a GPU that can, and so rounds activations too."
    )

    def fits(self, tensor: Tensor) -> bool:
        """Return whether it is the matrix of a linear layer, of whole blocks: loaders infer the blocks from the number of scales."""
        return _matrix(tensor) and tensor.shape[0] % _BLOCK == 0 and tensor.shape[1] % _BLOCK == 0

    def unit(self, tensor: Tensor) -> int:
        """Return the elements of a band of blocks."""
        return _BLOCK * tensor.shape[1]

    def parts(self, tensor: Tensor, name: str) -> tuple[Part, ...]:
        """Return codes and scales."""
        rows, blocks = tensor.shape[0] // _BLOCK, tensor.shape[1] // _BLOCK
        return (
            Part(name, "F8_E4M3", tensor.shape, self.unit(tensor)),
            Part(f"{name}_scale_inv", "F32", (rows, blocks), 4 * blocks),
        )

    def encode(self, tensor: Tensor, codes: Array) -> tuple[Array, ...] | None:
        """Encode whole bands."""
        fit = _fit(_blocks(codes, tensor.shape[1]), tensor.dtype, _spacing(FP32), _E4M3)
        if fit is None:
            return None
        return _bytes(_bands(fit.codes | fit.negative.view(np.uint8) << 7, tensor.shape[1])), _bytes(fit.scales)

    def decode(self, tensor: Tensor, parts: tuple[Array, ...]) -> Array:
        """Return the patterns of whole bands."""
        codes = _blocks(parts[0], tensor.shape[1])
        return _bands(_Fit(codes & 127, codes >= 128, parts[1].view(np.float32)).patterns(_E4M3, tensor.dtype), tensor.shape[1])

    def config(self, kept: list[str]) -> dict[str, Any]:
        """Return the settings of FineGrainedFP8Config."""
        return {
            "quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [_BLOCK, _BLOCK], "dequantize": True,
            "modules_to_not_convert": kept,
        }  # fmt: skip


def _blocks(band: Array, columns: int) -> Array:
    """Return bands of 128 rows as (blocks, 128 x 128)."""
    return np.ascontiguousarray(band.reshape(-1, _BLOCK, columns // _BLOCK, _BLOCK).swapaxes(1, 2)).reshape(-1, _BLOCK * _BLOCK)


def _bands(blocks: Array, columns: int) -> Array:
    return np.ascontiguousarray(blocks.reshape(-1, columns // _BLOCK, _BLOCK, _BLOCK).swapaxes(1, 2)).reshape(-1, columns)


@dataclass(frozen=True)
class MxExperts:
    """E2M1 with a power of two for 32 inputs, ``quant_method: mxfp4`` of transformers, which loads the experts of gpt-oss so."""

    name: str = "MXFP4"
    note: str = ""

    def fits(self, tensor: Tensor) -> bool:
        """Return whether it is a stack of experts as gpt-oss has it."""
        experts = re.search(r"\.experts\.(gate_up|down)_proj$", tensor.name) is not None and len(tensor.shape) == 3
        return experts and tensor.dtype in _HELD and tensor.shape[1] % _MX == 0 and tensor.elements > 0

    def unit(self, tensor: Tensor) -> int:
        """Return the elements of an expert."""
        return tensor.shape[1] * tensor.shape[2]

    def parts(self, tensor: Tensor, name: str) -> tuple[Part, ...]:
        """Return codes and scales."""
        experts, inputs, outputs = tensor.shape
        shape = experts, outputs, inputs // _MX
        return Part(f"{name}_blocks", "U8", (*shape, 16), prod(shape[1:]) * 16), Part(f"{name}_scales", "U8", shape, prod(shape[1:]))

    def encode(self, tensor: Tensor, codes: Array) -> tuple[Array, ...] | None:
        """Encode whole experts."""
        turned = np.ascontiguousarray(codes.reshape(-1, *tensor.shape[1:]).swapaxes(1, 2)).reshape(-1, _MX)
        fit = _fit(turned, tensor.dtype, _POWERS, _E2M1)
        if fit is None:
            return None
        return _halves(fit.codes | fit.negative.view(np.uint8) << 3), (np.frexp(fit.scales)[1] + 126).astype(np.uint8)

    def decode(self, tensor: Tensor, parts: tuple[Array, ...]) -> Array:
        """Return the patterns of whole experts."""
        codes, scales = _unpacked(parts[0]).reshape(-1, _MX), np.exp2(parts[1].astype(np.float32) - 127)
        turned = _Fit(codes & 7, codes >= 8, scales).patterns(_E2M1, tensor.dtype)
        return np.ascontiguousarray(turned.reshape(-1, tensor.shape[2], tensor.shape[1]).swapaxes(1, 2))

    def config(self, kept: list[str]) -> dict[str, Any]:
        """Return the settings of Mxfp4Config."""
        return {"quant_method": "mxfp4", "modules_to_not_convert": kept}


# Families of formats: one that holds a matrix is followed by those that hold it too, with more scales, if the groups divide a row.
FAMILIES: tuple[tuple[GridFormat, ...], ...] = (
    tuple(PackedIntegers(4, group) for group in (0, 128, 64, 32)),
    (MxExperts(),),
    tuple(PackedIntegers(8, group) for group in (0, 128, 64, 32)),
    (Fp8Blocks(),),
)
