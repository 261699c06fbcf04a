"""Counts bit patterns of one dtype, chunk by chunk, in a bit histogram."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.numerics.bins import NARROW, bin_count, bins
from analyzers.numerics.count_kernels import BF16_PLANE, count_codes, count_fp32, fp32_bins, magnitudes
from analyzers.numerics.histogram import BitHistogram

# Patterns of a chunk whose bins are found by sorting them, which is faster than searching the table
_FEW = 4096


class Accumulator:
    """Counts bit patterns of one dtype on one thread; `take` returns the counts as a `BitHistogram`.

    The table is cleared and reused from span to span. Compiled loops do the counting, or torch if ``device`` is "cuda" or patterns are
    tensors, which are counted where they are and read back by `take`.
    """

    def __init__(self, dtype: str, device: str = "cpu") -> None:
        self.dtype = dtype
        self._taken = BitHistogram(dtype)
        self._few: list[NDArray[Any]] | None = []  # occupied bins of each chunk, if only short ones were counted
        self._table = np.zeros(bin_count(dtype), dtype=np.int64)
        self._device = device
        self._counts: Any = None  # of a device

    def update(self, codes: Any) -> None:
        """Count ``codes``, (n,) unsigned integers of the dtype's width, or a tensor as of `torch_kernels.on_device`."""
        if not isinstance(codes, np.ndarray) or self._device == "cuda":
            self._count_on_device(codes)
            return
        if codes.size == 0:
            return
        codes = np.require(codes, requirements=("C", "A", "W"))  # required by the loops; chunks of a stream always comply
        if codes.dtype == np.uint32:
            self._add_wide(*count_fp32(codes, self._table))
        else:
            count_codes(codes, self._table)
        if codes.size > _FEW:
            self._few = None
        elif self._few is not None:
            self._few.append(_sorted_once(fp32_bins(codes) if codes.dtype == np.uint32 else codes))

    def take(self) -> BitHistogram:
        """Return the counts since the last call."""
        if self._counts is not None:
            table, rest = self._counts.take()
            self._table += table
            self._add_wide(*rest)
        taken, self._taken = self._taken, BitHistogram(self.dtype)
        few, self._few = self._few, []
        if few:
            taken.index = (_sorted_once(np.concatenate(few)) if len(few) > 1 else few[0]).astype(np.int64)
        else:  # of a norm this takes longer than everything else, though a comparison makes it ten times as fast
            taken.index = np.flatnonzero(self._table != 0)
        taken.counts = self._table[taken.index]
        self._table[taken.index] = 0
        # Of the bins of fp32, those of bf16 values hold one pattern each, as all narrow ones do.
        single = 0 if self.dtype in NARROW else int(np.searchsorted(taken.index, BF16_PLANE))
        low, high, squares = magnitudes(taken.index[single:], taken.counts[single:], bins(self.dtype).value)
        taken.add_magnitudes(low, high, squares)
        return taken

    def _count_on_device(self, codes: Any) -> None:
        from analyzers.numerics.torch_kernels import DeviceCounts, on_device

        patterns, self._few = on_device(codes, self._device), None
        if self._counts is None:
            self._counts = DeviceCounts(self._table.size, patterns.device)
        if patterns.numel():
            self._counts.update(patterns)

    def _add_wide(self, low: int, high: int, squares: float, near_overflow: int) -> None:
        """Add the results of `count_fp32`."""
        least, most = np.array([low, high], dtype=np.uint32).view(np.float32).tolist()
        self._taken.add_magnitudes(least, most, squares)
        self._taken.near_overflow += near_overflow


def _sorted_once(keys: NDArray[Any]) -> NDArray[Any]:
    """Return the different ``keys``, (n,) for n > 0, in order; for a few hundred `numpy.unique` takes ten times as long."""
    keys = np.sort(keys)
    return keys[np.concatenate(([True], keys[1:] != keys[:-1]))]
