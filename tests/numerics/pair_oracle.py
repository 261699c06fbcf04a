"""Counts pairs from their values in float64, from the definitions alone: slow and obvious."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.numerics.pair_counts import PairCounts
from tests.numerics.values import all_patterns, decoded

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def _bf16_values() -> Floats:
    """Return the finite values of bf16 in order, zero once, between -2^128 and 2^128, which stand for infinities when rounding."""
    values = np.unique(decoded(all_patterns("BF16"), "BF16"))
    values = values[np.isfinite(values)]
    return np.concatenate([[-(2.0**128)], values, [2.0**128]])


BF16 = _bf16_values()
ZERO = int(np.searchsorted(BF16, 0.0))
MIDPOINTS = BF16[:-1] + (BF16[1:] - BF16[:-1]) / 2  # exact: float64 has bits to spare


def place(values: Floats) -> Ints:
    """Return the positions of the nearest bf16 values in their order, with zero at 0 and ties to even. NaN is beyond all."""
    finite = np.where(np.isnan(values), 0.0, values)
    found = np.searchsorted(MIDPOINTS, finite, side="left")
    tie = MIDPOINTS[np.minimum(found, MIDPOINTS.size - 1)] == finite
    places = found - ZERO
    places += tie & (places % 2 != 0)  # patterns alternate between even and odd, starting at zero
    return np.where(np.isnan(values), 1 << 20, places)


@dataclass
class Expected:
    """The expected counts, and the updates of pairs of finite values: (m,) each, ``steps`` in steps of bf16."""

    counts: PairCounts
    absolute: Floats
    relative: Floats
    steps: Ints

    @property
    def moved(self) -> NDArray[np.bool_]:
        """(m,) mask of the pairs of finite values that changed."""
        moved: NDArray[np.bool_] = self.steps != 0
        return moved


def expected(base: NDArray[Any], tuned: NDArray[Any], dtypes: tuple[str, str], eta: float) -> Expected:
    """Return the expected counts of pairs of bit patterns."""
    w, v = decoded(base, dtypes[0]), decoded(tuned, dtypes[1])
    finite = np.isfinite(w) & np.isfinite(v)
    differ = ~((w == v) | (np.isnan(w) & np.isnan(v)))
    steps = np.abs(place(w) - place(v))
    with np.errstate(all="ignore"):
        update, larger = np.abs(v - w), np.maximum(np.abs(w), np.abs(v))
        probe = np.where(finite, update > eta * larger, differ)
        halved = np.abs(v / 2 - w / 2) / (larger / 2)  # avoids overflow of the difference in float64
        relative = np.where(larger == 0, 0.0, np.where(np.isinf(update), halved, update / larger))[finite]
    update = np.minimum(update, np.finfo(np.float64).max)[finite]
    counts = PairCounts(
        w.size, int((steps != 0).sum()), int(probe.sum()), int(differ.sum()), int((~finite).sum()), float(update.max(initial=0.0))
    )
    return Expected(counts, update, relative, steps[finite])
