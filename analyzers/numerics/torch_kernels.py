"""The bit histogram on a CUDA device, by torch. Bins and counts are those of the compiled loops.

torch is imported with the first chunk: nothing else in `numerics` needs it. ``device`` may be any torch
device; tests run the same code on CPU tensors.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.numerics.count_kernels import NO_MAGNITUDE


def count(codes: NDArray[Any], table: NDArray[np.int64], device: str) -> tuple[int, int, float, int]:
    """Add a histogram of ``codes`` (n,), unsigned integers of 8, 16 or 32 bits, to ``table`` (bins,).

    Returns what `count_kernels.count_fp32` does for 32 bits, and that there are no magnitudes for the others.
    """
    import torch

    signed = (np.uint8, np.int16, np.int32)[codes.itemsize // 2]  # torch has few unsigned types
    patterns = torch.from_numpy(codes.view(signed)).to(device)
    index, rest = patterns.to(torch.int32) & 0xFFFF, (NO_MAGNITUDE, 0, 0.0, 0)
    if codes.dtype == np.uint32:
        plane = sum(((patterns & mask) == 0).to(torch.int32) for mask in (0x1FFF, 0x3FFF, 0x7FFF, 0xFFFF))
        index = (plane << 16) | (patterns >> 16) & 0xFFFF
        magnitude = patterns & 0x7FFFFFFF
        finite = magnitude < 0x7F800000
        nonzero = magnitude[finite & (magnitude != 0)]
        low, high = (int(nonzero.min()), int(nonzero.max())) if nonzero.numel() else (NO_MAGNITUDE, 0)
        squares = float(patterns[finite].view(torch.float32).double().square().sum())
        rest = low, high, squares, int(((magnitude >= 0x477FF000) & (magnitude < 0x47800000)).sum())
    table += torch.bincount(index, minlength=table.size).cpu().numpy()
    return rest
