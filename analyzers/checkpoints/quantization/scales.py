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
from typing import Any, NamedTuple

from analyzers.checkpoints.tensor import Scale, Tensor
from analyzers.checkpoints.tensor_names.roles import INTEGER_DTYPES
from analyzers.checkpoints.words import WORDS
from analyzers.core.notes import Note

FP8_DTYPES = frozenset({"F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"})
_BYTES = frozenset({"U8", "I8"})
_EXPONENTS = frozenset({"F8_E8M0", "U8"})  # a byte tensor paired with fp8 or fp4 codes holds powers of two
_FACTORS = frozenset({"F32", "BF16", "F16"})


class _Fp4(NamedTuple):
    """A layout of E2M1 codes, two per byte: the dtypes of its scales, codes in a row that share one, and the dtype of the weight."""

    scales: frozenset[str]
    groups: tuple[int, ...]
    dtype: str


_FP4_LAYOUTS = (_Fp4(_EXPONENTS, (32,), "MXFP4"), _Fp4(_FACTORS, (32, 16), "F4"), _Fp4(frozenset({"F8_E4M3"}), (16,), "NVFP4"))
_BLOCK = 128  # block size of DeepSeek's checkpoints and their derivatives

# Suffixes of a weight's name that may be removed before the suffixes of its scales are appended.
_SCALES = ("_scale_inv", "_scale")
_SCALES_BESIDE = ("scale", "scale_weight", "qscale_weight")
_CODES = "_qdata"
# NVFP4's global scale: scales are multiplied by it (ModelOpt) or divided by it (compressed-tensors).
_FACTOR, _DIVISOR = "_scale_2", "_global_scale"
# Leaves of integers that hold weights, and of the floats that restore them.
_PACKED = frozenset({"qweight", "weight_packed", "W_q", "weight", "codes"})
_RESTORING = frozenset({
    "scales", "scale", "zero", "zeros", "weight_scale", "weight_zero_point", "SCB", "absmax", "nested_absmax", "quant_map",
    "nested_quant_map",
})  # fmt: skip
# Scales of activations and of the KV cache, which occur in models with scaled weights.
_OF_ACTIVATIONS = frozenset({
    "input_scale", "scale_input", "input_scale_inv", "input_global_scale", "activation_scale", "output_scale", "q_scale", "k_scale",
    "v_scale",
})  # fmt: skip


def pair_scales(tensors: Sequence[Tensor], config: Mapping[str, Any] | None) -> tuple[tuple[Tensor, ...], tuple[Note, ...]]:
    """Pair weights with their scales; return (tensors, notes), tensors in the same order.

    Weights with scales have ``scale`` set. Packed weights become one tensor with the name and shape of the weight and dtype MXFP4 or NVFP4,
    in the position of the packed codes. Scales have ``holds_scales`` set, whether or not they fit a weight, because they are never
    parameters. All other tensors that do not fit are unchanged, with a note. config: config.json. ``quantization_config.weight_block_size``
    decides where shapes are ambiguous, and ``expert_dtype`` distinguishes E2M1 codes from bytes.
    """
    pairing = _Pairing({tensor.name: tensor for tensor in tensors}, _stated_block(config), (config or {}).get("expert_dtype") == "fp4")
    coded = any(tensor.dtype in FP8_DTYPES or tensor.dtype in _BYTES or tensor.dtype == "F4" for tensor in tensors)
    paired = pairing.paired() if coded else list(tensors)
    notes = (WORDS.note("misfit-scales", tensors=len(pairing.misfits), name=pairing.misfits[0]),) if pairing.misfits else ()
    return tuple(_without_scales_of_integers(paired)), notes


def _without_scales_of_integers(tensors: Sequence[Tensor]) -> Iterator[Tensor]:
    """Set ``holds_scales`` of floats that restore integer weights: of GPTQ, AWQ, HQQ, bitsandbytes, compressed-tensors."""
    packed = {tensor.name.rpartition(".")[0] for tensor in tensors if tensor.dtype in INTEGER_DTYPES and _leaf(tensor.name) in _PACKED}
    for tensor in tensors:
        module, _, leaf = tensor.name.rpartition(".")
        restores = leaf in _RESTORING and module.removesuffix(".weight") in packed and tensor.dtype not in INTEGER_DTYPES
        yield _copied(tensor, holds_scales=True) if restores else tensor


class _Fit(NamedTuple):
    """A weight with its scale: dtype and shape of its values."""

    scale: Scale
    dtype: str
    shape: tuple[int, ...]


class _Pairing:
    """Pairs the weights and scales of one checkpoint, by name. misfits: names of weights whose scales do not fit."""

    def __init__(self, tensors: dict[str, Tensor], stated: tuple[int, int] | None, fp4: bool) -> None:
        self._tensors, self._stated, self._fp4 = tensors, stated, fp4
        self._taken: set[str] = set()
        self.misfits: list[str] = []

    def paired(self) -> list[Tensor]:
        """Return the tensors, in the same order."""
        weights = {tensor.name: self._weight(tensor) for tensor in self._tensors.values()}
        return [
            _copied(tensor, holds_scales=True) if tensor.scale is None and self._is_scale(name, tensor) else tensor
            for name, tensor in weights.items()
        ]

    def _is_scale(self, name: str, tensor: Tensor) -> bool:
        return name in self._taken or (bool(self._taken) and _leaf(name) in _OF_ACTIVATIONS and tensor.elements == 1)

    def _weight(self, tensor: Tensor) -> Tensor:
        """Return a tensor with its scales, if it is the codes of a weight; any other as it is."""
        coded = tensor.dtype in FP8_DTYPES or tensor.dtype in _BYTES or tensor.dtype == "F4"
        if not coded or tensor.elements == 0 or tensor.buffer or not tensor.shape:
            return tensor
        name, names = tensor.name, list(_scale_names(tensor.name))
        blocks = tensor.dtype not in FP8_DTYPES and _leaf(name).endswith("blocks")
        if blocks:
            start = name.removesuffix("blocks")
            name, names = start.rstrip("_."), [f"{start}scales"] if start.rstrip("_.") else []
        elif tensor.dtype not in FP8_DTYPES:
            name = name.removesuffix("_packed")
            names = list(_scale_names(name))
        scales = [self._tensors[each] for each in names if each in self._tensors]
        fit_of = self._fp8 if tensor.dtype in FP8_DTYPES else self._blocks if blocks else self._packed
        for scale in scales:
            fit = fit_of(tensor, name, scale)
            if fit is not None and (name == tensor.name or name not in self._tensors):
                self._taken.update(each.name for each in (scale, fit.scale.factor) if each is not None)
                return _copied(tensor, name, fit.dtype, fit.shape, fit.scale)
        if scales and (tensor.dtype not in _BYTES or blocks):  # bytes may be anything
            self.misfits.append(tensor.name)
            self._taken.update(scale.name for scale in scales)
        return tensor

    def _fp8(self, tensor: Tensor, _: str, scale: Tensor) -> _Fit | None:
        block = _block(tensor.shape, scale.shape, self._stated)
        if scale.dtype not in _EXPONENTS | _FACTORS or block is None:
            return None
        return _Fit(Scale(scale, block), tensor.dtype, tensor.shape)

    def _blocks(self, tensor: Tensor, _: str, scale: Tensor) -> _Fit | None:
        """Fit gpt-oss blocks and their scales: (..., groups, 16) bytes hold (..., groups x 32) codes."""
        fits = len(tensor.shape) > 1 and tensor.shape[-1] == 16 and scale.shape == tensor.shape[:-1] and scale.dtype in _EXPONENTS
        if not fits or not _contiguous(tensor, scale):
            return None
        return _Fit(Scale(scale, (1, 32)), "MXFP4", (*tensor.shape[:-2], tensor.shape[-2] * 32))

    def _packed(self, tensor: Tensor, name: str, scale: Tensor) -> _Fit | None:
        """Fit E2M1 codes and scales in one of `_FP4_LAYOUTS`."""
        shape = (*tensor.shape[:-1], tensor.shape[-1] * (1 if tensor.dtype == "F4" else 2))
        if not scale.shape or scale.shape[:-1] != shape[:-1] or not _contiguous(tensor, scale):
            return None
        for layout in _FP4_LAYOUTS:
            group = next((length for length in layout.groups if scale.shape[-1] * length == shape[-1]), None)
            if group is not None and scale.dtype in layout.scales and self._indicated(layout, tensor, name, scale):
                factor, divisor = (self._tensors.get(name + ending) if layout.dtype == "NVFP4" else None for ending in (_FACTOR, _DIVISOR))
                return _Fit(Scale(scale, (1, group), factor or divisor, divides=bool(divisor and not factor)), layout.dtype, shape)
        return None

    def _indicated(self, layout: _Fp4, tensor: Tensor, name: str, scale: Tensor) -> bool:
        """Return whether anything besides the shapes indicates that codes are those of ``layout``."""
        if layout.dtype == "MXFP4":  # bytes paired with bytes: only the name says that they are floats
            return scale.dtype != "U8" or name != tensor.name or tensor.dtype == "F4"
        if layout.dtype == "F4":  # bytes with 16-bit or 32-bit scales are integers unless the configuration says otherwise
            return tensor.dtype == "F4" or self._fp4
        one = self._tensors.get(name + _FACTOR) or self._tensors.get(name + _DIVISOR)
        return one is not None and one.elements == 1 and one.dtype in _FACTORS


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
