"""Counts pairs of values of two checkpoints in compiled loops.

Most pairs of a fine-tune are equal: blocks without a difference are skipped. Most other pairs are a few bf16 steps apart. If both sides are
stored in bf16, the base's pattern and the step describe such a pair completely: it takes one increment of a joint histogram, whose cells
are evaluated at the end of each chunk. All other unequal pairs are counted one at a time.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

BLOCK = 256  # pairs; a block stays in the L1 cache between the loops over it

# The joint histogram is (JOINT_STEPS, 2^15), flat, indexed by REACH + the step from |w| to |v|, and by the bf16 pattern of |w|.
REACH = 7
JOINT_STEPS = 2 * REACH + 1

# Indices into `counts`.
CHANGED, PROBE, DIFFER, NONFINITE, NONFINITE_DIFFER = range(5)
COUNTS = 5

# Columns of `sums`; its rows: pairs that differ without having changed, and changed pairs. Columns of relative updates follow.
TOTAL, SQUARE, LARGEST, RELATIVE = range(4)
SUMS = 6

STEP_BINS = 18

_MAGNITUDE = 0x7FFFFFFF
_INFINITY = 0x7F800000
_NAN_PLACE = 0x7FC0
_LARGEST = np.finfo(np.float64).max
_NORMAL = 2.0**-1022

# Bins (see `sketches`) are numbered by the exponent, from 2^-1074 on, and the first 7 mantissa bits.
_MANTISSA_SHIFT = 52 - 7
_FIRST_BIN = (1074 - 1023) << 7


# Float64 sums may be reassociated, so that vector additions are possible.
@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def _survey(base: NDArray[Any], tuned: NDArray[Any], shift: int) -> tuple[int, Any, float]:
    """Return how many patterns of a block differ, the largest |pattern| of both sides, and the sum of the base's squares."""
    differing, largest = 0, np.uint32(0)
    square = 0.0
    for i in range(base.size):
        w, v = np.uint32(base[i]) << np.uint32(shift), np.uint32(tuned[i]) << np.uint32(shift)
        differing += w != v
        largest = max(largest, np.uint32(max(np.uint32(w & _MAGNITUDE), np.uint32(v & _MAGNITUDE))))
        x = np.float64(np.uint32(w).view(np.float32))
        square += x * x
    return differing, largest, square


@njit(nogil=True, cache=True)
def _bf16_place(pattern: Any) -> Any:
    """Return the rank of an fp32 pattern, rounded to nearest even, among the values of bf16.

    Zeros are at 0, negative values below, NaN beyond.
    """
    magnitude = pattern & _MAGNITUDE
    if magnitude > _INFINITY:
        return _NAN_PLACE
    place = (magnitude + 0x7FFF + ((magnitude >> 16) & 1)) >> 16
    return place if pattern == magnitude else -place


@njit(nogil=True, cache=True)
def bin_of(x: Any) -> Any:
    """Return the index of the bin of a positive finite float64 (see `sketches`)."""
    normal = x if x >= _NORMAL else x * 2.0**64
    return (np.float64(normal).view(np.int64) >> _MANTISSA_SHIFT) + (_FIRST_BIN if x >= _NORMAL else _FIRST_BIN - (64 << 7))


# Each of the next loops computes one thing for a whole block, without branches, so that the compiler uses vector instructions.
@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract"})
def _measure(
    w: NDArray[np.float64], v: NDArray[np.float64], steps: NDArray[np.int64], times: NDArray[np.int64], eta: float,
    counts: NDArray[np.int64], updates: NDArray[np.float64], shares: NDArray[np.float64],
) -> None:  # fmt: skip
    """Count pairs; set ``updates`` to |v - w|, ``shares`` to their ratio to max(|w|, |v|), both 0 unless w and v are finite and differ."""
    changed, probe, differ, infinite = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    for i in range(w.size):
        before, after = abs(w[i]), abs(v[i])
        larger = before if before > after else after
        differs = (w[i] != v[i]) & ((before == before) | (after == after))
        finite = (before < np.inf) & (after < np.inf)
        update = abs(v[i] - w[i])
        update = update if update < _LARGEST else _LARGEST
        half = 0.5 if larger > 1.0 else 1.0  # so that the difference does not overflow
        share = abs(v[i] * half - w[i] * half) / (larger * half)
        beyond = (update > eta * larger) | (not finite)
        updates[i], shares[i] = (update, share) if differs & finite else (0.0, 0.0)
        changed += times[i] if steps[i] != 0 else 0
        probe += times[i] if differs & beyond else 0
        differ += times[i] if differs else 0
        infinite += times[i] if differs & (not finite) else 0
    counts[CHANGED] += changed
    counts[PROBE] += probe
    counts[DIFFER] += differ
    counts[NONFINITE_DIFFER] += infinite


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def _sum(
    x: NDArray[np.float64], steps: NDArray[np.int64], times: NDArray[np.int64], scale: float, sums: NDArray[np.float64], first: Any
) -> None:  # fmt: skip
    """Add x * scale and its square, each ``times`` times, to the columns of ``sums`` from ``first`` on, and the largest x."""
    total = square = total_moved = square_moved = 0.0
    for i in range(x.size):
        moved = steps[i] != 0
        scaled = x[i] * scale
        once = times[i] * scaled
        total += 0.0 if moved else once
        total_moved += once if moved else 0.0
        square += 0.0 if moved else once * scaled
        square_moved += once * scaled if moved else 0.0
    sums[0, first + TOTAL] += total
    sums[1, first + TOTAL] += total_moved
    sums[0, first + SQUARE] += square
    sums[1, first + SQUARE] += square_moved
    largest, largest_moved = np.int64(0), np.int64(0)
    for i in range(x.size):  # integers, which are ordered like the floats of their bits, are compared faster
        bits = np.float64(x[i]).view(np.int64)
        largest = max(largest, np.int64(0) if steps[i] != 0 else bits)
        largest_moved = max(largest_moved, bits if steps[i] != 0 else np.int64(0))
    sums[0, first + LARGEST] = max(sums[0, first + LARGEST], np.int64(largest).view(np.float64))
    sums[1, first + LARGEST] = max(sums[1, first + LARGEST], np.int64(largest_moved).view(np.float64))


@njit(nogil=True, cache=True)
def _add_bins(
    x: NDArray[np.float64], steps: NDArray[np.int64], times: NDArray[np.int64], cells: NDArray[np.int64], bins: NDArray[np.int64]
) -> None:  # fmt: skip
    """Add ``times`` to the ``bins`` (2, bins) of x; those of x = 0 are 0."""
    for i in range(x.size):
        cells[i] = (bins.shape[1] if steps[i] != 0 else 0) + (bin_of(x[i]) if x[i] > 0 else 0)
    flat = bins.reshape(-1)
    for i in range(x.size):
        flat[np.uint64(cells[i])] += times[i]  # unsigned: numba would add a check for negative indices


@njit(nogil=True, cache=True)
def _add_steps(steps: NDArray[np.int64], times: NDArray[np.int64], cells: NDArray[np.int64], bins: NDArray[np.int64]) -> None:
    """Add ``times`` to the bins of numbers of steps: 0, 1, 2 and 3 have one each, then 4 to 7, 8 to 15 and so on to 32,768 to 65,535."""
    for i in range(steps.size):
        exponent = (np.float64(steps[i]).view(np.int64) >> 52) - 1023
        cells[i] = steps[i] if steps[i] < 4 else exponent + 2
    for i in range(steps.size):
        bins[np.uint64(cells[i])] += times[i]


@njit(nogil=True, cache=True)
def count_values(
    w: NDArray[np.float64], v: NDArray[np.float64], steps: NDArray[np.int64], times: NDArray[np.int64], eta: float, scale: float,
    counts: NDArray[np.int64], sums: NDArray[np.float64], absolute: NDArray[np.int64], relative: NDArray[np.int64],
    step_counts: NDArray[np.int64],
) -> None:  # fmt: skip
    """Count pairs of numbers (n,), ``steps`` of bf16 apart, each ``times`` times; equal ones, also two NaNs, are not counted.

    eta: relative threshold of the probe; scale: factor of absolute updates in ``sums``. Added to: ``counts`` (COUNTS,), ``sums`` (2, SUMS),
    and, unless they are empty, the histograms of `PairTables`, ``absolute`` and ``relative`` (2, bins) and ``step_counts`` (STEP_BINS,).
    """
    updates, shares = np.empty(BLOCK), np.empty(BLOCK)
    counted, cells = np.empty(BLOCK, dtype=np.int64), np.empty(BLOCK, dtype=np.int64)
    for start in range(0, w.size, BLOCK):
        part = slice(start, min(start + BLOCK, w.size))
        some = slice(0, w[part].size)
        x, y, n = updates[some], shares[some], counted[some]
        _measure(w[part], v[part], steps[part], times[part], eta, counts, x, y)
        _sum(x, steps[part], times[part], scale, sums, np.int64(0))
        _sum(y, steps[part], times[part], 1.0, sums, np.int64(RELATIVE))
        if absolute.size:
            for i in range(n.size):
                n[i] = times[start + i] if x[i] > 0 else 0
            _add_bins(x, steps[part], n, cells[some], absolute)
            _add_bins(y, steps[part], n, cells[some], relative)
            _add_steps(steps[part], n, cells[some], step_counts)


@njit(nogil=True, cache=True)
def _read(
    base: NDArray[np.uint32], tuned: NDArray[np.uint32], w: NDArray[np.float64], v: NDArray[np.float64], steps: NDArray[np.int64], size: int
) -> None:  # fmt: skip
    """Set ``w``, ``v`` and ``steps`` to those of the first ``size`` pairs of fp32 patterns."""
    for i in range(size):
        w[i], v[i] = np.uint32(base[i]).view(np.float32), np.uint32(tuned[i]).view(np.float32)
        steps[i] = abs(_bf16_place(np.int64(base[i])) - _bf16_place(np.int64(tuned[i])))


@njit(nogil=True, cache=True)
def _count_near(base: NDArray[np.uint16], tuned: NDArray[np.uint16], joint: NDArray[np.int64], far: NDArray[np.int64]) -> int:
    """Count a block of pairs of finite bf16 patterns in ``joint``, and set ``far`` to the indices of pairs that are too far apart.

    Returns how many are too far apart. The difference of two patterns of equal sign is the step; patterns of opposite sign are out of
    reach. Equal pairs count in the row of step 0.
    """
    found = 0
    for i in range(base.size):
        w = np.int64(base[i])
        step = np.int64(tuned[i]) - w + REACH
        if 0 <= step < JOINT_STEPS:
            joint[np.uint64(step << 15 | w & 0x7FFF)] += 1  # unsigned: numba would add a check for negative indices
        else:
            far[found] = i
            found += 1
    return found


@njit(nogil=True, cache=True)
def count_pairs(
    base: NDArray[Any], tuned: NDArray[Any], shift: int, eta: float, joint: NDArray[np.int64], counts: NDArray[np.int64],
    sums: NDArray[np.float64], absolute: NDArray[np.int64], relative: NDArray[np.int64], step_counts: NDArray[np.int64],
    changed: NDArray[np.bool_],
) -> float:  # fmt: skip
    """Count pairs of patterns (n,) of fp32, or of bf16; return the sum of the base's squares over pairs of finite values.

    shift: left shift that turns the patterns into fp32, 0 or 16. joint: the joint histogram for bf16, or empty; pairs near each other are
    added to it, all others to the arrays after it, as by `count_values`. changed: (n,) whether patterns differ, or empty; set to whether
    the bf16 values of pairs differ.
    """
    index, once, steps = np.empty(BLOCK, dtype=np.int64), np.empty(BLOCK, dtype=np.int64), np.empty(BLOCK, dtype=np.int64)
    w_values, v_values = np.empty(BLOCK, dtype=np.float64), np.empty(BLOCK, dtype=np.float64)
    before, after = np.empty(BLOCK, dtype=np.uint32), np.empty(BLOCK, dtype=np.uint32)
    for i in range(BLOCK):
        once[i] = 1
    squares = 0.0
    for start in range(0, base.size, BLOCK):
        stop = min(start + BLOCK, base.size)
        differing, largest, square = _survey(base[start:stop], tuned[start:stop], shift)
        if largest < _INFINITY:
            squares += square
        else:
            for i in range(start, stop):
                w, v = np.int64(base[i]) << shift, np.int64(tuned[i]) << shift
                if max(w & _MAGNITUDE, v & _MAGNITUDE) < _INFINITY:
                    x = np.float64(np.uint32(w).view(np.float32))
                    squares += x * x
                else:
                    counts[NONFINITE] += 1
        if not differing:
            continue
        found: Any = np.int64(0)  # for a literal, `_read` would be compiled once more
        if joint.size and largest < _INFINITY:
            found = _count_near(base[start:stop], tuned[start:stop], joint, index)
        elif differing < (stop - start) // 2:
            for i in range(stop - start):  # branch-free: a branch would often be mispredicted
                index[found] = i
                found += base[start + i] != tuned[start + i]
        else:
            found = stop - start
            for i in range(found):
                index[i] = i
        if not found:  # the case of most blocks, whose pairs are all near
            continue
        for i in range(found):
            before[i] = np.uint32(base[start + index[i]]) << np.uint32(shift)
            after[i] = np.uint32(tuned[start + index[i]]) << np.uint32(shift)
        _read(before, after, w_values, v_values, steps, found)
        if changed.size:
            for i in range(found):
                changed[start + index[i]] = steps[i] != 0
        some = slice(0, found)
        count_values(w_values[some], v_values[some], steps[some], once[some], eta, 1.0, counts, sums, absolute, relative, step_counts)
    return squares
