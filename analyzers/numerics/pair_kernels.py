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
def _survey(base: NDArray[Any], tuned: NDArray[Any], shift: int) -> tuple[bool, Any, float]:
    """Return whether any two patterns of a block differ, the largest |pattern| of both sides, and the sum of the base's squares."""
    differing = largest = np.uint32(0)
    square = 0.0
    for i in range(base.size):
        w, v = np.uint32(base[i]) << np.uint32(shift), np.uint32(tuned[i]) << np.uint32(shift)
        differing |= np.uint32(w ^ v)
        largest = max(largest, np.uint32(max(np.uint32(w & _MAGNITUDE), np.uint32(v & _MAGNITUDE))))
        x = np.float64(np.uint32(w).view(np.float32))
        square += x * x
    return bool(differing != 0), largest, square


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


@njit(nogil=True, cache=True)
def _step_bin(steps: Any) -> Any:
    """Return the bin of a number of steps: 0, 1, 2 and 3 have one each, then 4 to 7, 8 to 15 and so on to 32,768 to 65,535."""
    if steps < 4:
        return steps
    exponent = (np.float64(steps).view(np.int64) >> 52) - 1023
    return exponent + 2


@njit(nogil=True, cache=True, error_model="numpy")
def count_values(
    w: NDArray[np.float64], v: NDArray[np.float64], steps: NDArray[np.int64], times: NDArray[np.int64], eta: float, scale: float,
    counts: NDArray[np.int64], sums: NDArray[np.float64], absolute: NDArray[np.int64], relative: NDArray[np.int64],
    step_counts: NDArray[np.int64],
) -> None:  # fmt: skip
    """Count pairs of different numbers (n,), ``steps`` of bf16 apart, each ``times`` times.

    eta: relative threshold of the probe; scale: factor of absolute updates in ``sums``. Added to: ``counts`` (COUNTS,), ``sums`` (2, SUMS),
    and, unless they are empty, the histograms of `PairTables`, ``absolute`` and ``relative`` (2, bins) and ``step_counts`` (STEP_BINS,).
    """
    for i in range(w.size):
        moved = np.int64(steps[i] != 0)
        counts[DIFFER] += times[i]
        counts[CHANGED] += times[i] * moved
        if not (abs(w[i]) < np.inf and abs(v[i]) < np.inf):
            counts[PROBE] += times[i]
            counts[NONFINITE_DIFFER] += times[i]
            continue
        update, larger = abs(v[i] - w[i]), max(abs(w[i]), abs(v[i]))
        share = update / larger
        if update == np.inf:
            update, share = _LARGEST, abs(v[i] / 2 - w[i] / 2) / (larger / 2)
        counts[PROBE] += times[i] * (update > eta * larger)
        scaled = update * scale
        sums[moved, TOTAL] += times[i] * scaled
        sums[moved, SQUARE] += times[i] * scaled * scaled
        sums[moved, LARGEST] = max(sums[moved, LARGEST], update)
        sums[moved, RELATIVE + TOTAL] += times[i] * share
        sums[moved, RELATIVE + SQUARE] += times[i] * share * share
        sums[moved, RELATIVE + LARGEST] = max(sums[moved, RELATIVE + LARGEST], share)
        if absolute.size:
            absolute[moved, bin_of(update)] += times[i]
            relative[moved, bin_of(share)] += times[i]
            step_counts[_step_bin(steps[i])] += times[i]


@njit(nogil=True, cache=True)
def _values_at(
    index: NDArray[np.int64], base: NDArray[Any], tuned: NDArray[Any], shift: int, changed: NDArray[np.bool_], w: NDArray[np.float64],
    v: NDArray[np.float64], steps: NDArray[np.int64],
) -> Any:  # fmt: skip
    """Set ``w``, ``v`` and ``steps`` to those of the pairs at ``index`` that are different numbers; return how many there are."""
    found: Any = 0
    for i in index:
        w_pattern, v_pattern = np.int64(base[i]) << shift, np.int64(tuned[i]) << shift
        w_magnitude, v_magnitude = w_pattern & _MAGNITUDE, v_pattern & _MAGNITUDE
        steps[found] = abs(_bf16_place(w_pattern) - _bf16_place(v_pattern))
        if changed.size:
            changed[i] = steps[found] != 0
        w[found], v[found] = np.uint32(w_pattern).view(np.float32), np.uint32(v_pattern).view(np.float32)
        found += max(w_magnitude, v_magnitude) != 0 and min(w_magnitude, v_magnitude) <= _INFINITY  # excludes +0 and -0, and pairs of NaNs
    return found


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
    index, steps, once = np.empty(BLOCK, dtype=np.int64), np.empty(BLOCK, dtype=np.int64), np.ones(BLOCK, dtype=np.int64)
    w_values, v_values = np.empty(BLOCK, dtype=np.float64), np.empty(BLOCK, dtype=np.float64)
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
        if joint.size and largest < _INFINITY:
            found = _count_near(base[start:stop], tuned[start:stop], joint, index)
        else:
            found = 0
            for i in range(stop - start):  # branch-free: a branch would often be mispredicted
                index[found] = i
                found += base[start + i] != tuned[start + i]
        part = slice(start, stop)
        found = _values_at(index[:found], base[part], tuned[part], shift, changed[part], w_values, v_values, steps)
        some = slice(0, found)
        count_values(w_values[some], v_values[some], steps[some], once[some], eta, 1.0, counts, sums, absolute, relative, step_counts)
    return squares
