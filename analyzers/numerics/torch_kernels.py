"""Bit histogram on a CUDA device with torch, with the same bins and counts as the compiled loops.

torch is imported on first use, because little else in `numerics` needs it. Tests run the same code on CPU tensors. Only `take`
synchronizes with the device.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.numerics.count_kernels import NO_MAGNITUDE

_AT_ONCE = 1 << 23  # Patterns of up to 16 bits, or half as many of 32: sorting takes up to 30 and 60 bytes for each.
_ODD = 0x1E3779B97F4A7C15, 0x3F58476D1CE4E5B9


def on_device(codes: Any, device: str) -> Any:
    """Convert (n,) patterns to a tensor of uint8, int16 or int32, because torch has few unsigned dtypes; a tensor is returned unchanged."""
    import torch

    if isinstance(codes, torch.Tensor):
        return codes
    signed = (np.uint8, np.int16, np.int32)[codes.itemsize // 2]
    return torch.from_numpy(np.require(codes, requirements=("C", "A", "W")).view(signed)).to(device)


class DeviceCounts:
    """Histogram (bins,) on a device; for 32-bit patterns also what `count_kernels.count_fp32` returns."""

    def __init__(self, bins: int, device: Any) -> None:
        import torch

        self._torch = torch
        self._table = torch.zeros(bins, dtype=torch.int64, device=device)
        self._extremes = torch.tensor([NO_MAGNITUDE, 0, 0], device=device)  # low, high, near overflow
        self._squares = torch.zeros(1, dtype=torch.float64, device=device)

    def update(self, patterns: Any) -> None:
        """Count (n,) patterns, as returned by `on_device`."""
        for part in patterns.split(_AT_ONCE // max(1, patterns.element_size() // 2)):
            self._table += histogram(self._planes(part) if part.dtype == self._torch.int32 else part, self._table.numel())

    def take(self) -> tuple[NDArray[np.int64], tuple[int, int, float, int]]:
        """Return the histogram and the other results since the last call, in one copy from the device, and reset them."""
        together = self._torch.cat([self._table, self._extremes, self._squares.view(self._torch.int64)]).cpu().numpy()
        self.__init__(self._table.numel(), self._table.device)  # type: ignore[misc]
        low, high, near = together[-4:-1].tolist()
        return together[:-4], (low, high, float(together[-1:].view(np.float64)[0]), near)

    def _planes(self, patterns: Any) -> Any:
        """Return the bins of fp32 patterns, and update extremes and squares."""
        torch = self._torch
        magnitude = patterns & 0x7FFFFFFF
        wide = (magnitude < 0x7F800000) & (patterns & 0xFFFF != 0)
        self._extremes[0] = torch.minimum(self._extremes[0], torch.where(wide, magnitude.long(), NO_MAGNITUDE).min())
        self._extremes[1] = torch.maximum(self._extremes[1], torch.where(wide, magnitude, 0).max())
        self._extremes[2] += (wide & (magnitude >= 0x477FF000) & (magnitude < 0x47800000)).sum()
        self._squares += torch.where(wide, patterns.view(torch.float32), 0.0).double().square_().sum()
        plane = sum(((patterns & mask) == 0).to(torch.int32) for mask in (0x1FFF, 0x3FFF, 0x7FFF, 0xFFFF))
        return (plane << 16) | (patterns >> 16) & 0xFFFF


def histogram(keys: Any, bins: int) -> Any:
    """Count how often each of 0 to bins - 1 occurs in ``keys``, (bins,); int16 keys count as unsigned.

    Sorting is as fast for equal values as for others, whereas atomic additions to the same bin are serialized.
    """
    import torch

    first = -bins // 2 if keys.dtype == torch.int16 else 0
    values = torch.arange(first, first + bins, device=keys.device).to(keys.dtype)
    counts = torch.searchsorted(keys.sort().values, values, right=True)
    return counts.diff(prepend=counts.new_zeros(1)).roll(first)


def checksums(patterns: Any) -> bytes:
    """Return two sums, mod 2^64, of (n,) patterns times odd pseudorandom functions of their positions. Any single change changes both."""
    import torch

    if patterns.element_size() == 8:  # A product mod 2^64 would lose most of the high bits.
        patterns = patterns.view(torch.int32)
    sums = torch.zeros(2, dtype=torch.int64, device=patterns.device)
    for start in range(0, patterns.numel(), _AT_ONCE >> 1):
        part = patterns[start : start + (_AT_ONCE >> 1)].long()
        position = torch.arange(start, start + part.numel(), device=patterns.device)
        for i, factor in enumerate(_ODD):
            mixed = position * factor
            mixed ^= mixed >> 29
            sums[i] += mixed.mul_(_ODD[1 - i]).bitwise_or_(1).mul_(part).sum()
    return sums.cpu().numpy().tobytes()
