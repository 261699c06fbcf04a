"""Counting pairs: patterns of two checkpoints side by side, chunk by chunk."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.numerics.loops import PLAIN_BYTES, Loops, loops_for
from analyzers.numerics.pair_tables import PairCounts as PairCounts
from analyzers.numerics.pair_tables import PairTables as PairTables
from analyzers.numerics.places import ChangedPlaces as ChangedPlaces
from analyzers.numerics.places import intersections as intersections
from analyzers.numerics.places import room_for_changed as room_for_changed


class PairCounter:
    """Counts pairs of patterns of two dtypes on one thread, and hands the counts over as `PairCounts`.

    eta: of the probe, in (0, 1). Magnitudes go to ``tables``, which no other thread may use meanwhile; without, they are not taken,
    which is faster. ``loops`` does the counting (by default compiled loops); with ``device`` "cuda" torch does. Holds no memory of its own.
    """

    def __init__(
        self,
        dtype_base: str,
        dtype_tuned: str,
        eta: float,
        tables: PairTables | None = None,
        device: str = "cpu",
        loops: Loops | None = None,
    ) -> None:
        self._dtypes = (dtype_base, dtype_tuned)
        self._eta = eta
        self._tables = tables
        self._device = device
        self._loops = loops or loops_for(PLAIN_BYTES + 1)
        self._taken = PairCounts()

    def update(self, base: NDArray[Any], tuned: NDArray[Any], changed: NDArray[np.uint64] | None = None) -> None:
        """Count pairs of patterns, (n,) unsigned integers of the dtypes' widths each. Raises ValueError if the lengths differ.

        changed: `room_for_changed`, set to which pairs' bf16 values differ; bits beyond the last pair to 0.
        """
        if base.size != tuned.size:
            raise ValueError(f"{base.size} patterns and {tuned.size} are no pairs")
        if base.size == 0:
            return
        if self._device == "cuda":
            from analyzers.numerics import torch_pairs

            counts = torch_pairs.count_pairs(base, tuned, self._dtypes, self._eta, self._tables, "cuda", changed)
        else:
            counts = self._loops.count_pairs(base, tuned, self._dtypes, self._eta, self._tables, changed)
        self._taken.add(counts)

    def take(self) -> PairCounts:
        """What was counted since the last call."""
        taken, self._taken = self._taken, PairCounts()
        return taken
