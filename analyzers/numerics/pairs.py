"""Counts pairs of bit patterns of the same weights in two checkpoints, chunk by chunk."""

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.numerics import pairs_fp64
from analyzers.numerics.pair_kernels import (
    CHANGED,
    COUNTS,
    DIFFER,
    JOINT_STEPS,
    LARGEST,
    NONFINITE,
    NONFINITE_DIFFER,
    PROBE,
    REACH,
    RELATIVE_LARGEST,
    RELATIVE_SQUARE,
    RELATIVE_TOTAL,
    SQUARE,
    SUMS,
    TOTAL,
    count_pairs,
)
from analyzers.numerics.pair_tables import PairCounts, PairTables, joint_values

_NO_JOINT = np.zeros(0, dtype=np.int64)
_NO_BINS = np.zeros((2, 0), dtype=np.int64)
_NO_STEPS = np.zeros(0, dtype=np.int64)
_NO_FLAGS = np.zeros(0, dtype=np.bool_)

# Pairs widened to fp32 at a time, so that the result stays in cache.
_PIECE = 1 << 16

# Fewer bf16 pairs than this are counted one at a time: scanning the joint histogram would take longer.
_FEW = 1 << 16


class PairCounter:
    """Counts pairs of bit patterns of two dtypes on one thread; `take` returns the counts as `PairCounts`.

    eta: of the probe, in (0, 1). Magnitudes are added to ``tables``, if given, which no other thread may use meanwhile.
    Compiled loops do the counting, or torch if ``device`` is "cuda".
    """

    def __init__(self, dtype_base: str, dtype_tuned: str, eta: float, tables: PairTables | None = None, device: str = "cpu") -> None:
        self._dtypes = (dtype_base, dtype_tuned)
        self._eta = eta
        self._tables = tables
        self._device = device
        self._taken = PairCounts()
        self._joint: NDArray[np.int64] | None = None  # see `pair_kernels`

    def update(self, base: NDArray[Any], tuned: NDArray[Any], changed: NDArray[np.bool_] | None = None) -> None:
        """Count pairs of patterns, (n,) unsigned integers of the dtypes' widths each. Raises ValueError if the lengths differ.

        changed: (n,), set to whether the bf16 values of each pair differ.
        """
        if base.size != tuned.size:
            raise ValueError(f"{base.size} patterns and {tuned.size} are no pairs")
        if base.size == 0:
            return
        if self._device == "cuda":
            from analyzers.numerics import torch_pairs

            counts = torch_pairs.count_pairs(base, tuned, self._dtypes, self._eta, self._tables, "cuda", changed)
        elif "F64" in self._dtypes:
            counts = pairs_fp64.count_pairs(base, tuned, self._dtypes, self._eta, self._tables, changed)
        else:
            counts = self._count(base, tuned, changed)
        self._taken.add(counts)

    def take(self) -> PairCounts:
        """The counts since the last call."""
        if self._joint is not None:
            self._taken.add(_joint_counts(self._joint, self._eta, self._tables))
            self._joint = None
        taken, self._taken = self._taken, PairCounts()
        return taken

    def _count(self, base: NDArray[Any], tuned: NDArray[Any], changed: NDArray[np.bool_] | None) -> PairCounts:
        """Count pairs of dtypes that fp32 holds exactly, by the compiled loop; see `pairs_fp64.count_pairs`."""
        tables, counts, sums = self._tables, np.zeros(COUNTS, dtype=np.int64), np.zeros((2, SUMS))
        bins = (_NO_BINS, _NO_BINS, _NO_STEPS) if tables is None else (tables.absolute.counts, tables.relative.counts, tables.steps)
        flags = _NO_FLAGS if changed is None else changed
        joint = _NO_JOINT
        if self._dtypes == ("BF16", "BF16") and base.size >= _FEW:
            joint = self._joint = np.zeros(JOINT_STEPS << 15, dtype=np.int64) if self._joint is None else self._joint
        square = 0.0
        for shift, w, v, part in _pieces(base, tuned, self._dtypes):
            if changed is not None:
                np.not_equal(w, v, out=changed[part])
            square += count_pairs(w, v, shift, self._eta, joint, counts, sums, *bins, flags[part])
        changes, probes, differ, nonfinite, nonfinite_differ = counts[[CHANGED, PROBE, DIFFER, NONFINITE, NONFINITE_DIFFER]].tolist()
        every = sums.sum(axis=0)
        every[LARGEST], every[RELATIVE_LARGEST] = sums[:, LARGEST].max(), sums[:, RELATIVE_LARGEST].max()
        if tables is not None:
            # Pairs in the joint histogram are subtracted again by `PairTables.add_joint`.
            tables.add_others(base.size - nonfinite - (differ - nonfinite_differ), nonfinite)
            for changed_only, of in ((False, every.tolist()), (True, sums[1].tolist())):
                absolute = of[TOTAL], of[SQUARE], of[LARGEST]
                tables.add_sums(changed_only, absolute, (of[RELATIVE_TOTAL], of[RELATIVE_SQUARE], of[RELATIVE_LARGEST]))
        largest, update_square = float(every[LARGEST]), Fraction(float(every[SQUARE]))
        return PairCounts(base.size, changes, probes, differ, nonfinite, largest, update_square, Fraction(square))


def _pieces(base: NDArray[Any], tuned: NDArray[Any], dtypes: tuple[str, str]) -> Iterator[tuple[int, NDArray[Any], NDArray[Any], slice]]:
    """The arguments of the compiled loop: the patterns of two sides of bf16 or of fp32 as they are, of others widened to fp32."""
    if dtypes in (("BF16", "BF16"), ("F32", "F32")):
        yield 16 if dtypes[0] == "BF16" else 0, _plain(base), _plain(tuned), slice(None)
        return
    for first in range(0, base.size, _PIECE):
        part = slice(first, first + _PIECE)
        w, v = (pairs_fp64.fp32_of(codes[part], dtype) for codes, dtype in zip((base, tuned), dtypes, strict=True))
        yield 0, _plain(w), _plain(v), part


def _joint_counts(joint: NDArray[np.int64], eta: float, tables: PairTables | None) -> PairCounts:
    """The counts of the pairs in the joint histogram, which is added to ``tables``."""
    joint[REACH << 15 : (REACH + 1) << 15] = 0  # equal pairs
    at = np.flatnonzero(joint)
    times = joint[at]
    if tables is not None:
        tables.add_joint(at, times)
    w, v, _ = joint_values(at)
    update = np.abs(v - w)
    count = int(times.sum())
    probes = int(times[update > eta * np.maximum(np.abs(w), np.abs(v))].sum())
    square = Fraction(float((times * update * update).sum()))
    return PairCounts(0, count, probes, count, 0, float(update.max(initial=0.0)), square)


def _plain(codes: NDArray[Any]) -> NDArray[Any]:
    """``codes`` as the loop is compiled for: contiguous, aligned and writable; copied if necessary."""
    return np.require(codes, requirements=("C", "A", "W"))
