"""Layouts whose codes are narrow floats: fp8, and E2M1 with shared scales (MXFP4, NVFP4)."""

from dataclasses import replace
from functools import cache, lru_cache

import numpy as np

from analyzers.checkpoints.quantization.candidate import FLOATS, Candidate, Fit, group_length, in_blocks
from analyzers.checkpoints.quantization.quantized import Floats, Packing, Quantized, Source, fp8_table
from analyzers.checkpoints.tensor import Tensor
from analyzers.numerics.formats import FP4_E2M1

_EXPONENTS = frozenset({"F8_E8M0", "U8"})  # a byte tensor paired with fp8 or fp4 codes holds powers of two
_BLOCK = 128  # block size of DeepSeek's checkpoints and their derivatives


def fp8(found: Candidate) -> Fit | None:
    """Fit fp8 codes with scales of the tensor, of rows, of columns or of blocks."""
    codes, scale = found.codes, found.parts["scale"]
    block = _block(codes.shape, scale.shape, found.settings.block)
    if scale.dtype not in _EXPONENTS | FLOATS or block is None:
        return None
    return in_blocks(
        found, codes.shape, block, _powers(scale), layout="fp8", dtype=codes.dtype, packing=Packing(8), table=fp8_table(codes.dtype)
    )  # fmt: skip


def mxfp4_blocks(found: Candidate) -> Fit | None:
    """Fit gpt-oss blocks and their scales: (..., groups, 16) bytes hold (..., groups x 32) codes."""
    codes, scale = found.codes, found.part("scale", _EXPONENTS)
    if scale is None or len(codes.shape) < 2 or codes.shape[-1] != 16 or scale.shape != codes.shape[:-1] or codes.strides is not None:
        return None
    return _e2m1(found, (*codes.shape[:-2], codes.shape[-2] * 32), 32, _powers(scale), "MXFP4")


def fp4(found: Candidate) -> Fit | None:
    """Fit E2M1 codes, two per byte, with scales of E8M0 (MXFP4), of E4M3 and one global scale (NVFP4), or of floats."""
    codes, scale = found.codes, found.part("scale", _EXPONENTS | FLOATS | {"F8_E4M3"})
    shape = (*codes.shape[:-1], codes.shape[-1] * (1 if codes.dtype == "F4" else 2))
    if scale is None or not scale.shape or scale.shape[:-1] != shape[:-1] or codes.strides is not None:
        return None
    group, one = group_length(shape[-1], scale.shape[-1]), found.part("factor", FLOATS) or found.part("divisor", FLOATS)
    # Bytes paired with bytes may be anything: only the name says that they are floats.
    if scale.dtype in _EXPONENTS and group == 32 and (scale.dtype != "U8" or codes.name.endswith("_packed") or codes.dtype == "F4"):
        return _e2m1(found, shape, group, _powers(scale), "MXFP4")
    if scale.dtype in FLOATS and group in (16, 32) and (codes.dtype == "F4" or found.settings.fp4):
        return _e2m1(found, shape, group, scale, "F4")
    if scale.dtype == "F8_E4M3" and group == 16 and one is not None and one.elements == 1:
        whole = (1, scale.elements)
        scales = Quantized(
            "", scale.dtype, scale, (1, *whole), Packing(8), fp8_table(scale.dtype), whole, one, divides="factor" not in found.parts
        )  # fmt: skip
        return _e2m1(found, shape, group, scales, "NVFP4")
    return None


def mlx_floats(found: Candidate) -> Fit | None:
    """Fit MLX's modes of floats: words of codes along the rows, with scales of bytes and no biases."""
    codes, scale = found.codes, found.part("scale", frozenset({"U8"}))
    mode = next((scheme.mode for scheme in found.settings.schemes_of(found.module)), "")
    bits, group = {"mxfp4": (4, 32), "nvfp4": (4, 16), "mxfp8": (8, 32)}.get(mode, (0, 0))
    if scale is None or not bits or codes.strides is not None or scale.shape[:-1] != codes.shape[:-1]:
        return None
    shape = (*codes.shape[:-1], codes.shape[-1] * 32 // bits)
    if group_length(shape[-1], scale.shape[-1]) != group:
        return None
    scale = replace(scale, dtype="F8_E4M3" if mode == "nvfp4" else "F8_E8M0")
    if bits == 4:
        return _e2m1(found, shape, group, scale, mode.upper())
    table = fp8_table("F8_E4M3")
    return in_blocks(found, shape, (1, group), scale, layout="MXFP8", dtype="F8_E4M3", packing=Packing(8), table=table)


def _e2m1(found: Candidate, shape: tuple[int, ...], group: int, scale: Source, name: str) -> Fit:
    return in_blocks(found, shape, (1, group), scale, layout=name, dtype=name, packing=Packing(4), table=_e2m1_table())


@cache
def _e2m1_table() -> Floats:
    return FP4_E2M1.decode().astype(np.float32)


def _powers(scale: Tensor) -> Tensor:
    """Return scales of bytes as powers of two."""
    return replace(scale, dtype="F8_E8M0") if scale.dtype == "U8" else scale


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
