"""What `PairCounter` counts, by name: in one piece or several, by the compiled loops or by torch."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.numerics.pair_kernels import CHANGED, DIFFER, LARGEST, NONFINITE, NONFINITE_DIFFER, PART, PROBE, RELATIVE, SQUARE, TOTAL
from analyzers.numerics.pairs import PairCounter, PairSums, codes_of, count_on_device
from analyzers.numerics.sketches import Distribution, PairTables, ulp_bins
from analyzers.numerics.torch_kernels import on_device
from analyzers.numerics.torch_pairs import DevicePairs

Codes = NDArray[Any]
Dtypes = tuple[str, str]


class Counting:
    """The counts of pairs added so far. device: that torch counts on, "" for the compiled loops."""

    def __init__(self, dtypes: Dtypes, eta: float = 1e-3, device: str = "", sized: bool = True) -> None:
        self._dtypes, self._eta, self._device = dtypes, eta, device
        self._sums, self.bins, self.products = PairSums(), PairTables.empty(1), np.zeros(3)
        self._sized, self._counter = sized, PairCounter(eta)
        self._on_device: DevicePairs | None = None

    def add(self, base: Codes, tuned: Codes, changed: NDArray[np.bool_] | None = None) -> None:
        if self._device:
            one, other = (on_device(codes, self._device) for codes in (base, tuned))
            self._on_device = self._on_device or DevicePairs(self._dtypes, self._eta, self._sized, one.device)
            self._on_device.update(one, other)
            self._sums.values += len(base)
            if changed is not None:
                changed[:] = self._on_device.changed(one, other).cpu().numpy()
            return
        narrow = set(self._dtypes) == {"BF16"}
        a, b = (codes_of(codes, dtype, narrow) for codes, dtype in zip((base, tuned), self._dtypes, strict=True))
        products = np.zeros((-(-base.size // PART), 3))
        tables = self.bins if self._sized else None
        self._counter.count(a, b, self._sums, products, np.zeros(len(products), np.bool_), tables, changed=changed)
        self.products += products.sum(axis=0)

    @property
    def sums(self) -> PairSums:
        if self._on_device is not None:
            count_on_device(self._on_device, self._sums, self.bins if self._sized else None)
            self._on_device = None
        return self._sums

    @property
    def whole(self) -> tuple[float, ...]:
        """Numbers of values, changed ones, by the probe, different and non-finite ones, and the largest update."""
        counts = self.sums.counts
        return self.sums.values, *counts[[CHANGED, PROBE, DIFFER, NONFINITE]].tolist(), float(self.sums.sums[:, LARGEST].max())

    @property
    def squares(self) -> tuple[float, float]:
        """Sums of squares of the updates and of the base."""
        return float(self.sums.sums[:, SQUARE].sum()), float(self.sums.moments[0])

    @property
    def zeros(self) -> float:
        """Number of pairs of finite values that are equal."""
        counts = self.sums.counts
        return float(self.sums.values - counts[NONFINITE] - (counts[DIFFER] - counts[NONFINITE_DIFFER]))

    @property
    def ulp_bins(self) -> list[tuple[int, int, float]]:
        return ulp_bins(self.bins.steps[0] + np.eye(1, self.bins.steps.shape[1])[0] * self.zeros)

    @property
    def distributions(self) -> tuple[Distribution, Distribution]:
        """Absolute and relative updates of finite values."""
        zeros, sums = self.zeros, self.sums.sums
        both, most = np.stack([sums.sum(axis=0), sums[1]]), np.stack([sums.max(axis=0), sums[1]])
        absolute, relative = (
            Distribution(table[0], zeros, both[:, first + TOTAL], both[:, first + SQUARE], most[:, first + LARGEST])
            for table, first in ((self.bins.absolute, 0), (self.bins.relative, RELATIVE))
        )
        return absolute, relative


def counted(base: Codes, tuned: Codes, dtypes: Dtypes, eta: float = 1e-3) -> Counting:
    counting = Counting(dtypes, eta)
    counting.add(base, tuned)
    return counting
