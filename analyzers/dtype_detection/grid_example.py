"""Shows one group of each grid: its weights, and the levels on which they are."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.dtype_detection.report import Grid, GridExample
from analyzers.dtype_detection.statistics import TensorResult
from analyzers.grids.code_books import BOOKS
from analyzers.numerics import BF16, FP16, FP32
from analyzers.numerics.conversions import fp32_of

Values = NDArray[np.float64]

# Tensors that are tried for each grid: a group of zeros shows nothing
_TRIED = 20
_FEWEST = 3
_SHOWN = 128
_MANTISSA = {"F32": FP32.mantissa_bits, "F16": FP16.mantissa_bits, "BF16": BF16.mantissa_bits}


def with_examples(grids: Sequence[Grid], results: Sequence[TensorResult]) -> tuple[Grid, ...]:
    """Add to each grid the beginning of a group whose levels can be told from it alone."""
    return tuple(grid.model_copy(update={"example": _example(grid, results)}) for grid in grids)


def _example(grid: Grid, results: Sequence[TensorResult]) -> GridExample | None:
    if grid.columns:
        return None  # neighbours have different scales
    group = int(grid.group) if grid.group.isdigit() else 0
    own = [r for r in results if r.window is not None and (of := r.judgement.grid) and _key(of, r.tensor.dtype) == _key(grid, grid.stored)]
    for result in own[:_TRIED]:
        assert result.window is not None
        start, codes = result.window
        if group and start % result.tensor.shape[-1] % group:
            continue
        size = min(group or _SHOWN, _SHOWN, codes.size, result.tensor.shape[-1])
        values = fp32_of(codes[:size], result.tensor.dtype).view(np.float32).astype(np.float64)
        levels = _levels(values, grid.format, _MANTISSA[result.tensor.dtype])
        if levels is not None:
            return GridExample(name=result.tensor.name, first=start, values=tuple(values.tolist()), levels=tuple(levels.tolist()))
    return None


def _key(grid: Any, stored: str) -> tuple[str, str, bool, bool, str]:
    return grid.format, grid.group, grid.columns, grid.proven, stored


def _levels(values: Values, name: str, mantissa: int) -> Values | None:
    """Return the levels from the lowest to the highest value, or None if no scale that follows from the largest value explains all."""
    distinct = np.unique(values)
    if not np.isfinite(distinct).all() or distinct.size < _FEWEST:
        return None
    if name.endswith("_offset"):
        step = np.diff(distinct).min()
        codes = np.rint((distinct - distinct[0]) / step)
        slope, least = np.polyfit(codes, distinct, 1)
        fits = bool(np.all(np.abs(codes * slope + least - distinct) <= 2.0**-mantissa * np.abs(distinct).max()))
        return np.arange(codes[-1] + 1) * slope + least if fits else None
    return next((drawn for levels in _books(name) if (drawn := _scaled(distinct, levels, mantissa)) is not None), None)


def _scaled(distinct: Values, levels: Values, mantissa: int) -> Values | None:
    """Return the levels in reach, times a scale that explains all values; None if there is no such scale."""
    largest = distinct[np.abs(distinct).argmax()]
    for level in sorted(levels[levels * largest > 0], key=abs):
        scale = largest / level
        own = levels[np.abs(distinct[:, None] / scale - levels).argmin(1)]
        if np.all(np.abs(own * scale - distinct) <= 2.0**-mantissa * np.abs(distinct)):
            # the middle of the scales with which each value rounds to what is stored
            known = (own != 0) & (distinct != 0)
            magnitudes, codes = np.abs(distinct[known]), np.abs(own[known])
            half = np.exp2(np.floor(np.log2(magnitudes)) - mantissa - 1)
            middle = (((magnitudes - half) / codes).max() + ((magnitudes + half) / codes).min()) / 2
            drawn: Values = np.sign(scale) * middle * levels[(own.min() <= levels) & (levels <= own.max())]
            return np.sort(drawn)
    return None


def _books(name: str) -> list[Values]:
    """Return the levels of a format in each of its versions, in ascending order, without a scale."""
    if name == "ternary":
        return [np.arange(-1.0, 2)]
    if name.startswith("int"):
        most = 2 ** int(name[3]) - (0 if name.endswith("_zp") else 2 ** (int(name[3]) - 1))
        return [np.arange(-most, most + 1.0)]
    key = "fp4_e2m1" if name in ("mxfp4", "nvfp4") else name.removeprefix("mx")
    own = [(book.zero, *(side[np.isfinite(side)] for side in book.levels)) for book in BOOKS if book.name == key]
    return [np.concatenate([-negative[::-1], np.zeros(int(zero)), positive]) for zero, positive, negative in own]
