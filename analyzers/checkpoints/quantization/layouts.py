"""The layouts of quantized weights: which tensors belong together, and how their values are computed.

| layout | codes | scales and other parts | value |
| --- | --- | --- | --- |
| fp8 | ``X``, or ``X_qdata`` of torchao | ``X_scale_inv``, ``X_scale`` | code x scale |
| | ``weight`` | next to it: ``scale``, ``scale_weight``, ``qscale_weight`` | |
| MXFP4 blocks | ``X_blocks`` (..., groups, 16) bytes | ``X_scales`` (..., groups) of E8M0 | E2M1 code x scale (gpt-oss) |
| fp4 | ``X`` or ``X_packed``, two E2M1 codes a byte | as for fp8: E8M0 for 32 in a row | code x scale (MXFP4) |
| | | E4M3 for 16 in a row, and a global scale | code x (scale x global) or (scale / global) (NVFP4) |
| | | fp32, bf16 or fp16 for 16 or 32 in a row, if declared to be fp4 | code x scale |

Scales named ``_inv`` are multiplied too: the name only says how they were computed. The low half of a byte holds the first code. Names,
dtypes and shapes choose the layout; ``quantization_config`` decides only what they leave open.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from analyzers.checkpoints.quantization.decoded_file import DecodedFile
from analyzers.checkpoints.quantization.quantized import Floats, Packing, Quantized, Source, fp8_table
from analyzers.checkpoints.tensor import Tensor
from analyzers.numerics.formats import FP4_E2M1

FP8 = frozenset({"F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"})
BYTES = frozenset({"U8", "I8"})
_EXPONENTS = frozenset({"F8_E8M0", "U8"})  # a byte tensor paired with fp8 or fp4 codes holds powers of two
_FLOATS = frozenset({"F32", "BF16", "F16"})
_BLOCK = 128  # block size of DeepSeek's checkpoints and their derivatives


@dataclass(frozen=True, slots=True)
class Settings:
    """What config.json decides where tensors do not. block: of fp8 scales; fp4: whether bytes of experts are E2M1 codes."""

    block: tuple[int, int] | None = None
    fp4: bool = False

    @classmethod
    def of(cls, config: Mapping[str, Any] | None) -> "Settings":
        """Read config.json, which is untrusted."""
        stated = (config or {}).get("quantization_config")
        settings = stated if isinstance(stated, dict) else {}
        block = settings.get("weight_block_size")
        lengths = block if isinstance(block, list) and all(type(length) is int and length > 0 for length in block) else []
        return cls((lengths[0], lengths[1]) if len(lengths) == 2 else None, (config or {}).get("expert_dtype") == "fp4")


class Candidate(NamedTuple):
    """Tensors that belong together by their names: the codes and the other parts. file: of the values."""

    codes: Tensor
    parts: Mapping[str, Tensor]
    settings: Settings
    file: DecodedFile


class Fit(NamedTuple):
    """A quantized tensor with the shape, and if it is not row-major the strides, of its values."""

    quantized: Quantized
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None


class Layout(NamedTuple):
    """A row of the table.

    codes: the ending of the name of the codes; weight: what replaces it in the name of the weight; dtypes: of the codes; parts: by their
    field the endings that replace that of the codes, the usual one first; fit: computes the layout, or None if shapes or dtypes do not fit;
    ambiguous: whether bytes of these names may also be something else, which is no fault.
    """

    name: str
    codes: str
    weight: str
    dtypes: frozenset[str]
    parts: Mapping[str, tuple[str, ...]]
    fit: Callable[[Candidate], Fit | None]
    ambiguous: bool = False

    def candidates(self, tensor: Tensor, tensors: Mapping[str, Tensor], settings: Settings, file: DecodedFile) -> Iterator[Candidate]:
        """Yield the tensors that belong to the codes ``tensor``: once for each scale that it may have."""
        start = tensor.name.removesuffix(self.codes)
        others = {
            field: next(tensors[start + ending] for ending in endings if start + ending in tensors)
            for field, endings in self.parts.items()
            if field != "scale" and any(start + ending in tensors for ending in endings)
        }
        for ending in self.parts["scale"]:
            if start + ending in tensors:
                yield Candidate(tensor, {"scale": tensors[start + ending], **others}, settings, file)


def _fp8(found: Candidate) -> Fit | None:
    codes, scale = found.codes, found.parts["scale"]
    block = _block(codes.shape, scale.shape, found.settings.block)
    if scale.dtype not in _EXPONENTS | _FLOATS or block is None:
        return None
    return _in_blocks(found, "fp8", codes.dtype, Packing(8), fp8_table(codes.dtype), codes.shape, block, _powers(scale))


def _mxfp4_blocks(found: Candidate) -> Fit | None:
    codes, scale = found.codes, found.parts["scale"]
    fits = len(codes.shape) > 1 and codes.shape[-1] == 16 and scale.shape == codes.shape[:-1] and scale.dtype in _EXPONENTS
    if not fits or not _contiguous(codes, scale):
        return None
    shape = (*codes.shape[:-2], codes.shape[-2] * 32)
    return _in_blocks(found, "MXFP4", "MXFP4", Packing(4), _e2m1(), shape, (1, 32), _powers(scale))


def _fp4(found: Candidate) -> Fit | None:
    codes, scale = found.codes, found.parts["scale"]
    shape = (*codes.shape[:-1], codes.shape[-1] * (1 if codes.dtype == "F4" else 2))
    if not scale.shape or scale.shape[:-1] != shape[:-1] or not scale.shape[-1] or not _contiguous(codes, scale):
        return None
    group, partial = divmod(shape[-1], scale.shape[-1])
    one = found.parts.get("factor") or found.parts.get("divisor")
    source: Source
    # Bytes paired with bytes may be anything: only the name says that they are floats.
    if scale.dtype in _EXPONENTS and group == 32 and (scale.dtype != "U8" or codes.name.endswith("_packed") or codes.dtype == "F4"):
        name, source = "MXFP4", _powers(scale)
    elif scale.dtype in _FLOATS and group in (16, 32) and (codes.dtype == "F4" or found.settings.fp4):
        name, source = "F4", scale
    elif scale.dtype == "F8_E4M3" and group == 16 and one is not None and one.elements == 1 and one.dtype in _FLOATS:
        name, all_of_them = "NVFP4", (1, scale.elements)
        source = Quantized(
            "", scale.dtype, scale, Packing(8), fp8_table(scale.dtype), (1, *all_of_them), all_of_them, one,
            divides="factor" not in found.parts,
        )  # fmt: skip
    else:
        return None
    return None if partial else _in_blocks(found, name, name, Packing(4), _e2m1(), shape, (1, group), source)


_SCALES = ("_scale_inv", "_scale")
_GLOBAL = {"factor": ("_scale_2",), "divisor": ("_global_scale",)}
_F4 = BYTES | {"F4"}

LAYOUTS = (
    Layout("fp8", "", "", FP8, {"scale": _SCALES}, _fp8),
    Layout("fp8", "weight", "weight", FP8, {"scale": ("scale", "scale_weight", "qscale_weight")}, _fp8),
    Layout("fp8", "_qdata", "_qdata", FP8, {"scale": ("_scale",)}, _fp8),
    Layout("MXFP4 blocks", "_blocks", "", _F4, {"scale": ("_scales",)}, _mxfp4_blocks),
    Layout("MXFP4 blocks", ".blocks", "", _F4, {"scale": (".scales",)}, _mxfp4_blocks),
    Layout("fp4", "_packed", "", _F4, {"scale": _SCALES, **_GLOBAL}, _fp4, ambiguous=True),
    Layout("fp4", "", "", _F4, {"scale": _SCALES, **_GLOBAL}, _fp4, ambiguous=True),
    Layout("fp4", "weight", "weight", _F4, {"scale": ("scale", "scale_weight", "qscale_weight")}, _fp4, ambiguous=True),
)


@cache
def layouts_of(dtype: str) -> tuple[Layout, ...]:
    """Return the layouts whose codes may have a dtype."""
    return tuple(layout for layout in LAYOUTS if dtype in layout.dtypes)


def _in_blocks(
    found: Candidate, layout: str, dtype: str, packing: Packing, table: Floats, shape: tuple[int, ...], block: tuple[int, int],
    scale: Source,
) -> Fit:  # fmt: skip
    """Return a tensor of ``shape``, whose last two axes are the matrices that are cut into blocks."""
    rows, columns = (1, *shape)[-2:]
    matrices = (prod(shape[:-2]), rows, columns)
    if scale.elements == 1:
        matrices = (1, prod(shape[:-1]), columns)
        block = matrices[1:]
    quantized = Quantized(
        layout, dtype, found.codes, packing, table, matrices, block, scale, file=found.file, offset=found.file.size
    )  # fmt: skip
    return Fit(quantized, shape)


def _powers(scale: Tensor) -> Tensor:
    """Return scales of bytes as powers of two."""
    return replace(scale, dtype="F8_E8M0") if scale.dtype == "U8" else scale


@cache
def _e2m1() -> Floats:
    return FP4_E2M1.decode().astype(np.float32)


def _contiguous(*tensors: Tensor) -> bool:
    """Return whether all tensors are contiguous: packed codes are located by their file offset, so they must not be views."""
    return all(tensor.strides is None for tensor in tensors)


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
