"""The bit histogram on a CUDA device, by torch. Bins and counts are those of the compiled loops.

torch is imported with the first chunk: nothing else in `numerics` needs it. ``device`` may be any torch
device; tests run the same code on CPU tensors.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.numerics.bins import PLANES
from analyzers.numerics.count_kernels import NO_MAGNITUDE


def count(codes: NDArray[Any], dtype: str, device: str) -> tuple[NDArray[np.int64], int, int, float, int]:
    """Histogram of ``codes`` (n,) unsigned integers, as flat int64 counts (planes * bins,).

    The other results are those of `count_kernels.count_fp32` for 32-bit codes; zeros for the other dtypes.
    """
    import torch

    if codes.dtype == np.uint8:
        index = torch.from_numpy(codes).to(device).to(torch.int32)
        return torch.bincount(index, minlength=256).cpu().numpy(), 0, 0, 0.0, 0
    if codes.dtype == np.uint16:
        index = torch.from_numpy(codes.view(np.int16)).to(device).to(torch.int32) & 0xFFFF
        return torch.bincount(index, minlength=1 << 16).cpu().numpy(), 0, 0, 0.0, 0
    bins = PLANES[dtype] << 16
    if codes.dtype == np.uint32:
        patterns = torch.from_numpy(codes.view(np.int32)).to(device)
        index = _index(torch, patterns)
        magnitude = patterns & 0x7FFFFFFF
        finite = magnitude < 0x7F800000
        nonzero = magnitude[finite & (magnitude != 0)]
        low, high = (int(nonzero.min()), int(nonzero.max())) if nonzero.numel() else (NO_MAGNITUDE, 0)
        squares = float(patterns[finite].view(torch.float32).double().square().sum())
        near_overflow = int(((magnitude >= 0x477FF000) & (magnitude < 0x47800000)).sum())
        return torch.bincount(index, minlength=bins).cpu().numpy(), low, high, squares, near_overflow
    values = torch.from_numpy(codes.view(np.float64)).to(device)
    narrow = values.to(torch.float32)
    nan = torch.isnan(values)
    same = (narrow.to(torch.float64) == values) | nan
    away = ~same & (narrow.to(torch.float64).abs() > values.abs())
    patterns = narrow.view(torch.int32) - away.to(torch.int32)
    index = torch.where(same, _index(torch, patterns), (5 << 16) | (patterns >> 16) & 0xFFFF)
    index = torch.where(nan, 0x7FC0, index)
    return torch.bincount(index, minlength=bins).cpu().numpy(), 0, 0, 0.0, 0


def _index(torch: Any, patterns: Any) -> Any:
    """(plane << 16) | high half of int32 fp32 patterns."""
    plane = torch.zeros_like(patterns)
    for mask in (0x1FFF, 0x3FFF, 0x7FFF, 0xFFFF):
        plane += (patterns & mask) == 0
    return (plane << 16) | (patterns >> 16) & 0xFFFF
