"""Counts pairs of bit patterns of the same weights in two checkpoints, chunk by chunk."""

import threading
from collections.abc import Iterator
from fractions import Fraction
from math import ldexp
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.numerics.conversions import bf16_places, fp32_of, values_of
from analyzers.numerics.pair_kernels import (
    COUNTS,
    JOINT_STEPS,
    LARGEST,
    NONFINITE,
    REACH,
    RELATIVE,
    SQUARE,
    STEP_BINS,
    SUMS,
    TOTAL,
    count_pairs,
    count_values,
)  # fmt: skip
from analyzers.numerics.pair_statistics import PairCounts, PairTables

_own = threading.local()
_NO_JOINT = np.zeros(0, dtype=np.int64)
_NO_TABLES = (np.zeros((2, 0), dtype=np.int64), np.zeros((2, 0), dtype=np.int64), np.zeros(STEP_BINS, dtype=np.int64))
_NO_FLAGS = np.zeros(0, dtype=np.bool_)

# Pairs that are widened to fp32 at a time, so that the result stays in cache.
_PIECE = 1 << 16

# Fewer bf16 pairs than this are counted one at a time: scanning the joint histogram would take longer.
_FEW = 1 << 16


class PairCounter:
    """Counts pairs of bit patterns of two dtypes on one thread; `take` returns the counts as `PairCounts`.

    eta: relative threshold of the probe, in (0, 1). Magnitudes are added to ``tables``, if given, which no other thread may use in the
    meantime. Compiled loops do the counting, or torch if ``device`` is "cuda" or patterns are tensors: those are counted on their device,
    and `take` reads the counts back.
    """

    def __init__(self, dtype_base: str, dtype_tuned: str, eta: float, tables: PairTables | None = None, device: str = "cpu") -> None:
        self._dtypes = (dtype_base, dtype_tuned)
        self._eta = eta
        self._tables = tables
        self._bins: tuple[NDArray[Any], NDArray[Any], NDArray[Any]] = _NO_TABLES
        if tables is not None:
            self._bins = tables.absolute.counts, tables.relative.counts, tables.steps
        self._device = device
        self._on_device: Any = None
        self._taken = PairCounts()
        self._counts = np.zeros(COUNTS, dtype=np.int64)

    def update(self, base: Any, tuned: Any, changed: NDArray[np.bool_] | None = None) -> None:
        """Count pairs of patterns, (n,) unsigned integers of the dtypes' widths, or tensors as of `torch_kernels.on_device`.

        changed: (n,), set to whether the bf16 values of each pair differ. Raises ValueError if the lengths differ.
        """
        if len(base) != len(tuned):
            raise ValueError(f"{len(base)} patterns and {len(tuned)} do not make pairs")
        if len(base) == 0:
            return
        self._taken.values += len(base)
        if "F64" in self._dtypes:
            self._count_fp64(base, tuned, changed)
        elif self._device == "cuda" or not isinstance(base, np.ndarray):
            self._count_on_device(base, tuned, changed)
        else:
            self._count_fp32(base, tuned, changed)

    def take(self) -> PairCounts:
        """Return the counts since the last call."""
        if self._on_device is not None:
            self._take_from_device()
        taken, self._taken = self._taken, PairCounts()
        taken.changed, taken.probe, taken.differ, taken.nonfinite, nonfinite_differ = self._counts.tolist()
        self._counts[:] = 0
        if self._tables is not None:
            self._tables.add_others(taken.values - taken.nonfinite - (taken.differ - nonfinite_differ), taken.nonfinite)
        return taken

    def _count_on_device(self, base: Any, tuned: Any, changed: NDArray[np.bool_] | None) -> None:
        from analyzers.numerics.torch_kernels import on_device
        from analyzers.numerics.torch_pairs import DevicePairs

        base, tuned = (on_device(codes, self._device) for codes in (base, tuned))
        if self._on_device is None:
            self._on_device = DevicePairs(self._dtypes, self._eta, self._tables is not None, base.device)
        self._on_device.update(base, tuned)
        if changed is not None:
            changed[:] = self._on_device.changed(base, tuned).cpu().numpy()

    def _take_from_device(self) -> None:
        from analyzers.numerics.torch_pairs import ABSOLUTE, SHARE, first_bin

        counts, sums, square, histograms, steps = self._on_device.take()
        self._counts += counts
        self._add_sums(sums, Fraction(square))
        if self._tables is not None:
            self._bins[2][:] += steps
            for bins, binades, found in zip(self._bins, (ABSOLUTE, SHARE), histograms, strict=False):
                bins[:, first_bin(binades) :][:, : found.size // 2] += found.reshape(2, -1)

    def _count_fp32(self, base: NDArray[Any], tuned: NDArray[Any], changed: NDArray[np.bool_] | None) -> None:
        """Count pairs of dtypes that fp32 holds exactly."""
        flags, sums, square = _NO_FLAGS if changed is None else changed, np.zeros((2, SUMS)), 0.0
        near = self._dtypes == ("BF16", "BF16") and base.size >= _FEW
        joint = _joint_of_thread() if near else _NO_JOINT
        for shift, w, v, part in _pieces(base, tuned, self._dtypes):
            if changed is not None:
                np.not_equal(w, v, out=changed[part])
            square += count_pairs(w, v, shift, self._eta, joint, self._counts, sums, *self._bins, flags[part])
        self._add_sums(sums, Fraction(square))
        if near:
            self._count_joint(joint)

    def _count_joint(self, joint: NDArray[np.int64]) -> None:
        """Count the pairs in ``joint``, and clear it."""
        joint[REACH << 15 : (REACH + 1) << 15] = 0  # equal pairs
        cells = np.flatnonzero(joint != 0)  # faster than on integers
        times = joint[cells]
        joint[cells] = 0
        step, pattern = np.divmod(cells, 1 << 15)
        step -= REACH
        w, v = (values_of(codes.astype(np.uint16), "BF16") for codes in (pattern, pattern + step))  # both have the same sign
        self._count_values(w, v, np.abs(step), times)

    def _count_fp64(self, base: NDArray[Any], tuned: NDArray[Any], changed: NDArray[np.bool_] | None) -> None:
        """Count pairs with float64 on at least one side."""
        w, v = values_of(base, self._dtypes[0]), values_of(tuned, self._dtypes[1])
        finite = np.isfinite(w) & np.isfinite(v)
        self._counts[NONFINITE] += w.size - np.count_nonzero(finite)
        shift = _shift(w[finite])
        self._taken.base_square += Fraction(float(np.square(np.ldexp(w[finite], -shift)).sum())) * Fraction(4) ** shift
        at = np.flatnonzero((w != v) & ~(np.isnan(w) & np.isnan(v)))
        steps = np.abs(bf16_places(base[at], self._dtypes[0]) - bf16_places(tuned[at], self._dtypes[1]))
        if changed is not None:
            changed[:] = False
            changed[at] = steps != 0
        self._count_values(w[at], v[at], steps, np.ones(at.size, dtype=np.int64))

    def _count_values(self, w: NDArray[np.float64], v: NDArray[np.float64], steps: NDArray[np.int64], times: NDArray[np.int64]) -> None:
        """Count pairs of different numbers; see `pair_kernels.count_values`."""
        for chosen in (steps == 0, steps != 0):  # each group has its own scale: no square may overflow, or vanish relative to the largest
            part = w[chosen], v[chosen], steps[chosen], times[chosen]
            shift, sums = _shift(*part[:2]), np.zeros((2, SUMS))
            count_values(*part, self._eta, ldexp(1, -shift), self._counts, sums, *self._bins)
            self._add_sums(sums, Fraction(0), shift)

    def _add_sums(self, sums: NDArray[np.float64], base_square: Fraction, shift: int = 0) -> None:
        """Add the sums of one chunk, with absolute updates in units of 2^shift."""
        unit, rows = Fraction(2) ** shift, sums.tolist()
        for row, changed_only in ((rows[0], False), (rows[1], False), (rows[1], True)):
            total, square, largest = row[:RELATIVE]
            absolute = Fraction(total) * unit, Fraction(square) * unit * unit, largest
            if self._tables is not None:
                self._tables.add_sums(changed_only, absolute, (row[RELATIVE + TOTAL], row[RELATIVE + SQUARE], row[RELATIVE + LARGEST]))
            if not changed_only:
                self._taken.add(PairCounts(absolute_max=largest, update_square=absolute[SQUARE]))
        self._taken.add(PairCounts(base_square=base_square))


def _joint_of_thread() -> NDArray[np.int64]:
    """Return this thread's empty joint histogram (see `pair_kernels`). One per pair of checkpoints would exhaust memory."""
    if not hasattr(_own, "joint"):
        _own.joint = np.zeros(JOINT_STEPS << 15, dtype=np.int64)
    joint: NDArray[np.int64] = _own.joint
    return joint


def _pieces(base: NDArray[Any], tuned: NDArray[Any], dtypes: tuple[str, str]) -> Iterator[tuple[int, NDArray[Any], NDArray[Any], slice]]:
    """Yield the arguments of the compiled loop: patterns of bf16 or fp32 on both sides unchanged, all others widened to fp32."""
    if dtypes in (("BF16", "BF16"), ("F32", "F32")):
        yield 16 if dtypes[0] == "BF16" else 0, _plain(base), _plain(tuned), slice(None)
        return
    for first in range(0, base.size, _PIECE):
        part = slice(first, first + _PIECE)
        w, v = (fp32_of(codes[part], dtype) for codes, dtype in zip((base, tuned), dtypes, strict=True))
        yield 0, _plain(w), _plain(v), part


def _plain(codes: NDArray[Any]) -> NDArray[Any]:
    """Return ``codes`` as the loop requires them: contiguous, aligned and writable; copied if necessary."""
    return np.require(codes, requirements=("C", "A", "W"))


def _shift(*values: NDArray[np.float64]) -> int:
    """Return the exponent of a power of two by which the finite ``values`` are divided, so that squares of differences do not overflow."""
    largest = max(float(np.abs(each[np.isfinite(each)]).max(initial=0.0)) for each in values)
    return max(int(np.frexp(largest)[1]) + 1, -1000)
