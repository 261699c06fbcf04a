"""Pairs quantized weights with their scale tensors, so that they can be read as floats.

| weight | scales | value |
| --- | --- | --- |
| ``X`` of fp8 codes | ``X_scale_inv``, ``X_scale``; next to ``weight``: ``scale``, ``scale_weight``, ``qscale_weight`` | code x scale |
| ``X_qdata`` of fp8 codes | ``X_scale`` | code x scale (torchao) |
| ``X_blocks`` of bytes (..., groups, 16) | ``X_scales`` (..., groups) of E8M0 | E2M1 code x scale (MXFP4, gpt-oss) |
| ``X`` or ``X_packed`` of E2M1 codes, two per byte | as for fp8: E8M0 per 32 in a row | code x scale (MXFP4) |
| the same | E4M3 per 16 in a row, and one fp32 global scale | code x (scale x global) or (scale / global) (NVFP4) |
| ``X`` declared to hold E2M1 codes | as for fp8: fp32, bf16 or fp16 per 16 or 32 in a row | code x scale |

Scales named ``_inv`` are multiplied too: the name only says how they were computed. The low half of a byte holds the first code.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from analyzers.checkpoints.tensor import Scale, Tensor
from analyzers.checkpoints.tensor_names.roles import INTEGER_DTYPES
from analyzers.checkpoints.words import WORDS
from analyzers.core.notes import Note

FP8_DTYPES = frozenset({"F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"})
_BYTES = frozenset({"U8", "I8"})
_EXPONENTS = frozenset({"F8_E8M0", "U8"})  # a byte tensor paired with fp8 or fp4 codes holds powers of two
_FACTORS = frozenset({"F32", "BF16", "F16"})
_FP8_SCALES = _EXPONENTS | _FACTORS

_BLOCK = 128  # block size of DeepSeek's checkpoints and their derivatives
_MXFP4_GROUP, _NVFP4_GROUP = 32, 16

# Suffixes of a weight's name that may be removed before the suffixes of its scales are appended.
_SCALES = ("_scale_inv", "_scale")
_SCALES_BESIDE = ("scale", "scale_weight", "qscale_weight")
_CODES = "_qdata"
# NVFP4's global scale: scales are multiplied by it (ModelOpt) or divided by it (compressed-tensors).
_FACTOR, _DIVISOR = "_scale_2", "_global_scale"
# Leaves of integers that hold weights, and of the floats that restore them.
_PACKED = frozenset({"qweight", "weight_packed", "W_q", "weight", "codes"})
_RESTORING = frozenset(
    [
        "scales",
        "scale",
        "zero",
        "zeros",
        "weight_scale",
        "weight_zero_point",
        "SCB",
        "absmax",
        "nested_absmax",
        "quant_map",
        "nested_quant_map",
    ]
)
# Scales of activations and of the KV cache, which occur in models with scaled weights.
_OF_ACTIVATIONS = frozenset(
    {
        "input_scale",
        "scale_input",
        "input_scale_inv",
        "input_global_scale",
        "activation_scale",
        "output_scale",
        "q_scale",
        "k_scale",
        "v_scale",
    }
)


def pair_scales(tensors: Sequence[Tensor], config: Mapping[str, Any] | None) -> tuple[tuple[Tensor, ...], tuple[Note, ...]]:
    """Pair weights with their scales; return (tensors, notes), tensors in the same order.

    Weights with scales have ``scale`` set. Packed weights become one tensor with the name and shape of the weight and dtype MXFP4 or NVFP4,
    in the position of the packed codes. Scales have ``holds_scales`` set, whether or not they fit a weight, because they are never
    parameters. All other tensors that do not fit are unchanged, with a note. config: config.json. ``quantization_config.weight_block_size``
    decides where shapes are ambiguous, and ``expert_dtype`` distinguishes E2M1 codes from bytes.
    """
    if not any(tensor.dtype in FP8_DTYPES or tensor.dtype in _BYTES or tensor.dtype == "F4" for tensor in tensors):
        return tuple(_without_scales_of_integers(tensors)), ()
    pairing = _Pairing({tensor.name: tensor for tensor in tensors}, _stated_block(config), (config or {}).get("expert_dtype") == "fp4")
    return tuple(_without_scales_of_integers(list(pairing.paired()))), tuple(pairing.notes())


def _without_scales_of_integers(tensors: Sequence[Tensor]) -> Iterator[Tensor]:
    """Set ``holds_scales`` of floats that restore integer weights: of GPTQ, AWQ, HQQ, bitsandbytes, compressed-tensors."""
    packed = {tensor.name.rpartition(".")[0] for tensor in tensors if tensor.dtype in INTEGER_DTYPES and _leaf(tensor.name) in _PACKED}
    for tensor in tensors:
        module, _, leaf = tensor.name.rpartition(".")
        restores = leaf in _RESTORING and module.removesuffix(".weight") in packed and tensor.dtype not in INTEGER_DTYPES
        yield _copied(tensor, holds_scales=True) if restores else tensor


class _Pairing:
    """Pairs the weights and scales of one checkpoint, by name."""

    def __init__(self, tensors: dict[str, Tensor], stated: tuple[int, int] | None, fp4: bool) -> None:
        self._tensors = tensors
        self._stated = stated
        self._fp4 = fp4
        self._taken: set[str] = set()
        self._misfits: list[str] = []

    def paired(self) -> Iterator[Tensor]:
        found = {tensor.name: self._weight(tensor) for tensor in self._tensors.values()}
        for name, tensor in found.items():
            if tensor.scale is None and (name in self._taken or (self._taken and _leaf(name) in _OF_ACTIVATIONS and tensor.elements == 1)):
                yield _copied(tensor, holds_scales=True)
            else:
                yield tensor

    def notes(self) -> Iterator[Note]:
        if self._misfits:
            yield WORDS.note("misfit-scales", tensors=len(self._misfits), name=self._misfits[0])

    def _weight(self, tensor: Tensor) -> Tensor:
        if tensor.elements == 0 or tensor.buffer or not tensor.shape:
            return tensor
        if tensor.dtype in FP8_DTYPES:
            return self._fp8(tensor)
        if tensor.dtype in _BYTES or tensor.dtype == "F4":
            return self._blocks(tensor) if _leaf(tensor.name).endswith("blocks") else self._packed(tensor)
        return tensor

    def _fp8(self, tensor: Tensor) -> Tensor:
        scales = [self._tensors[name] for name in _scale_names(tensor.name) if name in self._tensors]
        for scale in scales:
            block = _block(tensor.shape, scale.shape, self._stated)
            if scale.dtype in _FP8_SCALES and block is not None:
                return self._with(tensor, Scale(scale, block))
        if scales:
            self._misfit(tensor, scales)
        return tensor

    def _misfit(self, tensor: Tensor, scales: Sequence[Tensor]) -> None:
        self._misfits.append(tensor.name)
        self._taken.update(scale.name for scale in scales)

    def _blocks(self, tensor: Tensor) -> Tensor:
        """Pair gpt-oss blocks with their scales: (..., groups, 16) bytes hold (..., groups x 32) codes."""
        start = tensor.name.removesuffix("blocks")
        scale, name = self._tensors.get(start + "scales"), start.rstrip("_.")
        if scale is None or not name:
            return tensor
        fits = len(tensor.shape) > 1 and tensor.shape[-1] * 2 == _MXFP4_GROUP and scale.shape == tensor.shape[:-1]
        if not fits or scale.dtype not in _EXPONENTS or name in self._tensors or not _contiguous(tensor, scale):
            self._misfit(tensor, [scale])
            return tensor
        shape = (*tensor.shape[:-2], tensor.shape[-2] * _MXFP4_GROUP)
        return self._with(tensor, Scale(scale, (1, _MXFP4_GROUP)), name, "MXFP4", shape)

    def _packed(self, tensor: Tensor) -> Tensor:
        name = tensor.name.removesuffix("_packed")
        scales = [self._tensors[each] for each in _scale_names(name) if each in self._tensors]
        for scale in scales:
            found = self._packed_with(tensor, name, scale)
            if found is not None:
                return found
        if tensor.dtype == "F4" and scales:
            self._misfit(tensor, scales)
        return tensor

    def _packed_with(self, tensor: Tensor, name: str, scale: Tensor) -> Tensor | None:
        columns = tensor.shape[-1] * (1 if tensor.dtype == "F4" else 2)
        shape = (*tensor.shape[:-1], columns)
        if scale.shape[:-1] != shape[:-1] or not scale.shape or not _contiguous(tensor, scale):
            return None
        if scale.dtype in _EXPONENTS and scale.shape[-1] * _MXFP4_GROUP == columns:
            if scale.dtype == "U8" and not tensor.name.endswith("_packed") and tensor.dtype != "F4":
                return None  # bytes paired with bytes: nothing indicates floats
            return self._named(tensor, name, "MXFP4", shape, Scale(scale, (1, _MXFP4_GROUP)))
        # Bytes with 16-bit or 32-bit scales are integers unless the configuration says otherwise.
        if scale.dtype in _FACTORS and (tensor.dtype == "F4" or self._fp4):
            group = next((length for length in (_MXFP4_GROUP, _NVFP4_GROUP) if scale.shape[-1] * length == columns), None)
            return None if group is None else self._named(tensor, name, "F4", shape, Scale(scale, (1, group)))
        factor, divisor = self._tensors.get(name + _FACTOR), self._tensors.get(name + _DIVISOR)
        one = factor or divisor
        if scale.dtype != "F8_E4M3" or scale.shape[-1] * _NVFP4_GROUP != columns or one is None:
            return None
        if one.elements != 1 or one.dtype not in _FACTORS:
            return None
        return self._named(tensor, name, "NVFP4", shape, Scale(scale, (1, _NVFP4_GROUP), one, divides=factor is None))

    def _named(self, tensor: Tensor, name: str, dtype: str, shape: tuple[int, ...], scale: Scale) -> Tensor | None:
        if name != tensor.name and name in self._tensors:
            return None
        return self._with(tensor, scale, name, dtype, shape)

    def _with(self, tensor: Tensor, scale: Scale, name: str = "", dtype: str = "", shape: tuple[int, ...] = ()) -> Tensor:
        self._taken.add(scale.tensor.name)
        if scale.factor is not None:
            self._taken.add(scale.factor.name)
        return _copied(tensor, name, dtype, shape, scale)


def _copied(
    tensor: Tensor, name: str = "", dtype: str = "", shape: tuple[int, ...] = (), scale: Scale | None = None, holds_scales: bool = False
) -> Tensor:
    """Copy a tensor with some fields replaced. `dataclasses.replace` would take a second for the tensors of 60 layers of experts."""
    return Tensor(
        name or tensor.name, dtype or tensor.dtype, shape or tensor.shape, tensor.file, tensor.offset, tensor.nbytes, tensor.role,
        tensor.layer, tensor.buffer, scale, holds_scales, tensor.strides,
    )  # fmt: skip


def _scale_names(name: str) -> Iterator[str]:
    for ending in _SCALES:
        yield name + ending
    if name.endswith(_CODES):
        yield name.removesuffix(_CODES) + "_scale"
    module, dot, leaf = name.rpartition(".")
    if leaf == "weight":
        for beside in _SCALES_BESIDE:
            yield module + dot + beside


def _contiguous(*tensors: Tensor) -> bool:
    """Return whether all tensors are contiguous: packed codes are located by their file offset, so they must not be views."""
    return all(tensor.strides is None for tensor in tensors)


def _leaf(name: str) -> str:
    return name.rpartition(".")[2]


def _stated_block(config: Mapping[str, Any] | None) -> tuple[int, int] | None:
    settings = (config or {}).get("quantization_config")
    stated = settings.get("weight_block_size") if isinstance(settings, dict) else None
    if isinstance(stated, list) and len(stated) == 2 and all(type(length) is int and length > 0 for length in stated):
        return stated[0], stated[1]
    return None


@lru_cache(maxsize=1024)  # tens of thousands of experts share a few shapes
def _block(shape: tuple[int, ...], scales: tuple[int, ...], stated: tuple[int, int] | None) -> tuple[int, int] | None:
    """Return the rows and columns of a weight of ``shape`` that share one element of ``scales``; None if the shapes do not fit.

    A single scale covers the whole weight. Otherwise axes are matched from the first: (out,) and (out, 1) are one scale per
    row, (experts,) one per expert. Every axis before the last two needs one scale per index. If only the length of the other
    axis matches, the axes differ and the scales are not a 128 x 128 grid, they belong to that axis: (in,) and (in, 1) are one per
    column (FBGEMM's experts), (1, out) one per row. Any other vector is rejected, as it may cover unequal parts, such as fused
    queries, keys and values.
    """
    weight = (1, *shape) if len(shape) == 1 else shape
    rows, columns = weight[-2:]
    if all(length == 1 for length in scales):
        return rows, columns
    grid = (1, *scales) if len(shape) == 1 else scales + (1,) * (len(weight) - len(scales))
    if len(grid) != len(weight) or grid[:-2] != weight[:-2]:
        return None
    if stated is not None and (-(-rows // stated[0]), -(-columns // stated[1])) == grid[-2:]:
        return stated
    if len(shape) == 2 and len(scales) == 1 and scales[0] not in (rows, columns, -(-rows // _BLOCK)):
        return None
    if rows != columns and grid[-2:] != (-(-rows // _BLOCK), -(-columns // _BLOCK)):
        if grid[-2:] == (columns, 1):
            return rows, 1
        if grid[-2:] == (1, rows):
            return 1, columns
    by_rows, by_columns = _length(rows, grid[-2]), _length(columns, grid[-1])
    return None if by_rows is None or by_columns is None else (by_rows, by_columns)


def _length(elements: int, scales: int) -> int | None:
    """Return how many of ``elements`` share one of ``scales``; the last scale may cover fewer. None if ambiguous or impossible.

    Ambiguous means that the exact quotient is not a power of two and a common block length fits except at the end: for 100
    elements, 4 scales may cover 25 or 32 each.
    """
    if scales in (0, 1):
        return elements if scales else None
    usual = [length for length in (_BLOCK, 16, 32, 64, 256, 512) if -(-elements // length) == scales]
    evenly = elements // scales if elements % scales == 0 else None
    if evenly is None or _BLOCK in usual:
        return usual[0] if usual else None
    return None if usual and evenly & (evenly - 1) else evenly
