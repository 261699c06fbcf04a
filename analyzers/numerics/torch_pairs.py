"""Counting of pairs on a CUDA device with torch, with the results of `pair_kernels`.

torch is imported on first use. Tests run the same code on CPU tensors. Patterns of up to 16 bits are sorted into unique pairs, of which
there are few, and these are counted with their multiplicity; wider pairs are counted individually, with masks. Only `take` and the sort
synchronize with the device: the sort once in `_SORTED` pairs, for the number of unique pairs.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.numerics.conversions import fp32_table
from analyzers.numerics.pair_kernels import FIRST_EXPONENT, PER_BINADE, RELATIVE, STEP_BINS, SUMS

_SORTED = 8 << 20  # Pairs sorted at once, which takes 24 bytes for each, or compared for a mask.
_AT_ONCE = 1 << 20  # Pairs counted at once, which takes some 130 bytes for each.
COUNTS = 5  # the first counts of `pair_kernels`, as far as they are counted here
_LANES = 1024  # Copies of a frequent bin, because atomic additions to one bin are serialized.

# Binades of updates in fp32: absolute ones from 2^-149 to 2^129; relative ones from 2^-60, below any between different numbers, to 2.
ABSOLUTE, SHARE = range(-149, 130), range(-60, 2)


class DevicePairs:
    """Counts of `pair_kernels.count_pairs` on a device. dtypes: those of both sides, exact in fp32. tables: also fill histograms."""

    def __init__(self, dtypes: tuple[str, str], eta: float, tables: bool, device: Any) -> None:
        import torch

        self._torch, self._dtypes, self._eta, self._tables, self._device = torch, dtypes, eta, tables, device
        self._decoded: list[Any] = [
            None if dtype in ("F32", "BF16") else torch.from_numpy(fp32_table(dtype).view(np.int32)).to(device) for dtype in dtypes
        ]
        self._lane = torch.arange(_AT_ONCE, dtype=torch.int64, device=device)
        self._clear()

    def _clear(self) -> None:
        def zeros(kind: Any, *shape: int) -> Any:
            return self._torch.zeros(shape, dtype=kind, device=self._device)

        torch = self._torch
        self._counts, self._sums, self._square = zeros(torch.int64, COUNTS), zeros(torch.float64, 2, SUMS), zeros(torch.float64, 1)
        self._bins = [zeros(torch.int64, 2, _width(binades) if self._tables else 0) for binades in (ABSOLUTE, SHARE)]
        self._steps = zeros(torch.int64, STEP_BINS if self._tables else 0, _LANES)
        self._waiting: list[tuple[Any, ...]] = []  # Unique pairs with their multiplicities.

    def update(self, base: Any, tuned: Any) -> None:
        """Count pairs of (n,) patterns, as returned by `torch_kernels.on_device`."""
        torch = self._torch
        if "F32" in self._dtypes:
            once = torch.ones(1, dtype=torch.int64, device=self._device)
            for w, v in zip(base.split(_AT_ONCE), tuned.split(_AT_ONCE), strict=True):
                self._add(self._fp32(0, w), self._fp32(1, v), once.expand(w.numel()))
            return
        for w, v in zip(base.split(_SORTED), tuned.split(_SORTED), strict=True):
            keys = w.to(torch.int32).mul_(1 << 16).add_(v.to(torch.int32).bitwise_and_(0xFFFF))
            # copies, since what `unique` returns holds on to memory for as many pairs as it was given
            self._waiting.append(tuple(different.clone() for different in torch.unique(keys, return_counts=True)))
            if sum(different.numel() for different, _ in self._waiting) > _AT_ONCE * 3 // 4:
                self._add_waiting()

    def changed(self, base: Any, tuned: Any) -> Any:
        """Return the mask (n,) of pairs whose bf16 values differ, on the device."""
        masks = []
        for sides in zip(base.split(_SORTED), tuned.split(_SORTED), strict=True):
            w, v = (self._fp32(i, each).view(self._torch.float32).bfloat16() for i, each in enumerate(sides))
            masks.append((w != v) & ~(w.isnan() & v.isnan()))
        return self._torch.cat(masks)

    def take(self) -> tuple[NDArray[np.int64], NDArray[np.float64], float, list[NDArray[np.int64]], NDArray[np.int64]]:
        """Return counts, sums, the base's sum of squares, the histograms of `ABSOLUTE` and `SHARE`, and that of steps; reset all.

        Takes one copy from the device.
        """
        integers = self._torch.int64
        self._add_waiting()
        parts = [self._counts, self._sums.view(integers), self._square.view(integers), *self._bins, self._steps.sum(1)]
        together = self._torch.cat([each.flatten() for each in parts]).cpu().numpy()
        counts, sums, square, absolute, share, steps = np.split(together, np.cumsum([each.numel() for each in parts])[:-1])
        self._clear()
        return counts, sums.view(np.float64).reshape(2, SUMS), float(square.view(np.float64)[0]), [absolute, share], steps

    def _add_waiting(self) -> None:
        """Count the waiting unique pairs together, because the hundred operations take as long for few pairs as for many."""
        together: list[Any] = [self._torch.cat(each) for each in zip(*self._waiting, strict=True)]
        self._waiting = []
        for keys, times in zip(*(part.split(_AT_ONCE) for part in together), strict=True):
            self._add(self._fp32(0, keys >> 16), self._fp32(1, keys), times)

    def _add(self, base: Any, tuned: Any, times: Any) -> None:
        """Count pairs of (n,) fp32 patterns with multiplicities ``times``."""
        torch, lane = self._torch, self._lane[: base.numel()]
        w, v = (each.view(torch.float32).double() for each in (base, tuned))
        steps = (_places(torch, base) - _places(torch, tuned)).abs_()
        finite, moved = torch.isfinite(w) & torch.isfinite(v), steps != 0
        differ = (w != v) & ~(torch.isnan(w) & torch.isnan(v))
        self._square += torch.dot(torch.where(finite, w, 0.0).square_(), times.double())
        update, larger = (v - w).abs_(), torch.maximum(w.abs_(), v.abs_())
        probe = differ & ((update > self._eta * larger) | ~finite)
        self._counts += torch.stack((moved, probe, differ, ~finite, ~finite & differ)).mul(times).sum(1)
        chosen = finite & differ
        share = torch.where(chosen, update / larger, 0.0)
        update, times = torch.where(chosen, update, 0.0), torch.where(chosen, times, 0)
        planes = torch.stack((~moved, moved))
        weights = torch.where(planes, times, 0).double()
        for column, values in ((0, update), (RELATIVE, share)):
            weighed = values * weights
            self._sums[:, column] += weighed.sum(1)
            self._sums[:, column + 1] += weighed.mul_(values).sum(1)
            self._sums[:, column + 2].copy_(torch.maximum(self._sums[:, column + 2], torch.where(planes, values, 0.0).amax(1)))
        if self._tables:
            for bins, binades, values in zip(self._bins, (ABSOLUTE, SHARE), (update, share), strict=True):
                # The bin's index as in `pair_kernels.bin_of`: no update is subnormal in fp64. Pairs that do not count add 0 to any bin.
                number = (values.view(torch.int64) >> 52 - 7) - (binades.start + 1023) * PER_BINADE
                number = torch.where(chosen, number, lane % _width(binades))
                bins.view(-1).scatter_add_(0, number.add_(moved, alpha=_width(binades)), times)
            step_bin = torch.where(steps < 4, steps, torch.frexp(steps.double())[1] + 1)
            self._steps.view(-1).scatter_add_(0, step_bin * _LANES + lane % _LANES, times)

    def _fp32(self, side: int, patterns: Any) -> Any:
        """Convert a side's (n,) patterns, or integers whose low bits are such patterns, to fp32 patterns as int32."""
        if self._dtypes[side] == "F32":
            return patterns
        if self._dtypes[side] == "BF16":
            return patterns.to(self._torch.int32) << 16
        table = self._decoded[side]
        return table[patterns.to(self._torch.int64) & (table.numel() - 1)]


def first_bin(binades: range) -> int:
    """Return the index of a histogram's first bin among the bins of `sketches`."""
    return (binades.start - FIRST_EXPONENT) * PER_BINADE


def _width(binades: range) -> int:
    return len(binades) * PER_BINADE


def _places(torch: Any, patterns: Any) -> Any:
    """Return the ranks (n,) of fp32 patterns, rounded to nearest even, among the values of bf16: zeros at 0, NaN beyond."""
    magnitude = patterns.to(torch.int64) & 0x7FFFFFFF
    place = (magnitude + 0x7FFF + ((magnitude >> 16) & 1)) >> 16
    return torch.where(magnitude > 0x7F800000, 0x7FC0, torch.where(patterns < 0, -place, place))
