"""Tries whether codes and scales of formats that transformers loads restore the first values of tensors on a grid."""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from analyzers.checkpoints import DTYPE_BITS, Tensor
from analyzers.dtype_detection.report import Grid
from analyzers.dtype_detection.statistics import TensorResult
from analyzers.grids import TensorGrid
from analyzers.numerics import BF16, FP8_E4M3, FP16, FP32, FloatFormat
from analyzers.numerics.conversions import fp32_of
from analyzers.numerics.grid_scales import fit_scales

_HELD: dict[str, FloatFormat] = {"F32": FP32, "F16": FP16, "BF16": BF16}
_EXPERTS = re.compile(r"\.experts\.(gate_up|down)_proj$")
_LINEAR = ("attention", "mlp", "expert", "other")
# Bits of integers with a scale in the dtype of the weights, and their groups, 0 for a row; and the block of fp8
_INTEGERS, _GROUPS, _BLOCK = (4, 8), (0, 128, 64, 32), 128
_E4M3 = FP8_E4M3.decode()[:127].astype(np.float32)


def with_saved_bytes(grids: Sequence[Grid], results: Sequence[TensorResult]) -> tuple[Grid, ...]:
    """Add to each proven grid the bytes that the one format saves that restores most of its tensors, by their first values."""
    return tuple(grid.model_copy(update={"codes_save": _saved(grid, results)}) if grid.proven else grid for grid in grids)


def _saved(row: Grid, results: Sequence[TensorResult]) -> int:
    saved: Counter[str] = Counter()
    for result in results:
        grid, tensor = result.judgement.grid, result.tensor
        if grid is not None and _key(grid, tensor.dtype) == _key(row, row.stored):
            saved.update(_of_tensor(tensor, grid, result))
    return max(saved.values(), default=0)


def _key(grid: Grid | TensorGrid, stored: str) -> tuple[str, str, bool, bool, str]:
    return grid.format, grid.group, grid.columns, grid.proven, stored


def _of_tensor(tensor: Tensor, grid: TensorGrid, result: TensorResult) -> dict[str, int]:
    """Return the bytes that each format saves which restores the first values."""
    if grid.format == "mxfp4" and grid.columns and len(tensor.shape) == 3 and _EXPERTS.search(tensor.name):
        return {"mxfp4": tensor.nbytes - tensor.elements * 17 // 32}
    plain = len(tensor.shape) == 2 and tensor.name.endswith(".weight") and tensor.role in _LINEAR
    if not plain or result.window is None or result.window[0] % tensor.shape[1]:
        return {}
    codes, (rows, columns) = result.window[1], tensor.shape
    held, saved = _HELD[tensor.dtype], {}
    spacing = held.mantissa_bits, 1 - held.bias
    codes = codes[: max(1, codes.size // columns) * columns]
    values = fp32_of(codes, tensor.dtype).view(np.float32)
    integers = re.match(r"int(\d)(_zp)?$", grid.format)
    least = int(integers[1]) + (integers[2] is not None) if integers else 0  # signed ones of the same range
    for bits in _INTEGERS if not np.any(np.signbit(values) & (values == 0)) else ():  # a negative zero has no code
        if bits < least:
            continue
        levels = np.arange((1 << bits - 1) + 1, dtype=np.float32)
        for group in _GROUPS:
            if (
                columns % (group or columns) == 0
                and columns % (32 // bits) == 0
                and _fits(values, group or columns, spacing, spacing, levels, True)
            ):
                scales = rows * (columns // group if group else 1) * DTYPE_BITS[tensor.dtype] // 8
                saved[f"int{bits} {group}"] = tensor.nbytes - tensor.elements * bits // 8 - scales
    shared = grid.group in ("128x128", "tensor") if grid.format == "fp8_e4m3" else grid.format.startswith(("mxfp4", "mxfp6", "ternary"))
    if (
        shared
        and rows % _BLOCK == columns % _BLOCK == 0
        and _fits(values, _BLOCK, spacing, (FP32.mantissa_bits, 1 - FP32.bias), _E4M3, False)
    ):
        saved["fp8"] = tensor.nbytes - tensor.elements - 4 * tensor.elements // _BLOCK**2
    return {name: number for name, number in saved.items() if number > 0}


def _fits(values: np.ndarray, group: int, spacing: tuple[int, int], scales: tuple[int, int], levels: np.ndarray, signed: bool) -> bool:
    """Return whether each group of values has a scale; signed: whether the largest level is a negative one only."""
    size = min(group, values.size)
    groups = np.ascontiguousarray(values[: values.size // size * size].reshape(-1, size))
    found, codes = np.empty(len(groups), np.float32), np.empty(groups.shape, np.uint8)
    return fit_scales(groups, spacing, scales, levels, len(levels) - signed, found, codes) == len(groups)
