"""What `PairCounter` counts, by name: in one piece or several, by the compiled loops or by torch."""

from dataclasses import dataclass
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


@dataclass
class PairCounts:
    """Counts and sums of pairs."""

    values: int = 0
    changed: int = 0
    probe: int = 0
    differ: int = 0
    nonfinite: int = 0
    absolute_max: float = 0.0
    update_square: float = 0.0
    base_square: float = 0.0


class Counting:
    """The counts of pairs added so far. device: that torch counts on, "" for the compiled loops."""

    def __init__(self, dtypes: Dtypes, eta: float, device: str = "", sized: bool = True) -> None:
        self._dtypes, self._eta, self._device = dtypes, eta, device
        self.sums, self.bins, self.products = PairSums(), PairTables.empty(1), np.zeros(3)
        self._sized, self._counter = sized, PairCounter(eta)
        self._on_device: DevicePairs | None = None

    def add(self, base: Codes, tuned: Codes, changed: NDArray[np.bool_] | None = None) -> None:
        if self._device:
            one, other = (on_device(codes, self._device) for codes in (base, tuned))
            self._on_device = self._on_device or DevicePairs(self._dtypes, self._eta, self._sized, one.device)
            self._on_device.update(one, other)
            self.sums.values += len(base)
            if changed is not None:
                changed[:] = self._on_device.changed(one, other).cpu().numpy()
            return
        narrow = set(self._dtypes) == {"BF16"}
        a, b = (codes_of(codes, dtype, narrow) for codes, dtype in zip((base, tuned), self._dtypes, strict=True))
        products = np.zeros((-(-base.size // PART), 3))
        tables = self.bins if self._sized else None
        self._counter.count(a, b, self.sums, products, np.zeros(len(products), np.bool_), tables, changed=changed)
        self.products += products.sum(axis=0)

    def finish(self) -> None:
        if self._on_device is not None:
            count_on_device(self._on_device, self.sums, self.bins if self._sized else None)
            self._on_device = None

    @property
    def counts(self) -> PairCounts:
        self.finish()
        counts, (plain, moved), square = self.sums.counts, self.sums.sums, float(self.sums.moments[0])
        changed, probe, differ, nonfinite = (int(counts[at]) for at in (CHANGED, PROBE, DIFFER, NONFINITE))
        largest, update = max(plain[LARGEST], moved[LARGEST]), plain[SQUARE] + moved[SQUARE]
        return PairCounts(self.sums.values, changed, probe, differ, nonfinite, largest, update, square)

    @property
    def tables(self) -> "Tables":
        self.finish()
        return Tables(self.sums, self.bins)


class Tables:
    """The sizes of the updates of pairs of finite values."""

    def __init__(self, sums: PairSums, bins: PairTables) -> None:
        self.nonfinite = int(sums.counts[NONFINITE])
        zeros = float(sums.values - self.nonfinite - (sums.counts[DIFFER] - sums.counts[NONFINITE_DIFFER]))
        self._steps = bins.steps[0].copy()
        self._steps[0] += zeros
        both, most = np.stack([sums.sums.sum(axis=0), sums.sums[1]]), np.stack([sums.sums.max(axis=0), sums.sums[1]])
        self.absolute, self.relative = (
            Distribution(table[0], zeros, both[:, first + TOTAL], both[:, first + SQUARE], most[:, first + LARGEST])
            for table, first in ((bins.absolute, 0), (bins.relative, RELATIVE))
        )

    def ulp_bins(self) -> list[tuple[int, int, float]]:
        return ulp_bins(self._steps)


def counted(base: Codes, tuned: Codes, dtypes: Dtypes, eta: float = 1e-3, device: str = "") -> tuple[PairCounts, Tables]:
    counting = Counting(dtypes, eta, device)
    counting.add(base, tuned)
    return counting.counts, counting.tables
