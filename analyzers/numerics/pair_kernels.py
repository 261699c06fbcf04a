"""The loop over pairs of bit patterns of two checkpoints; `pairs_fp64` has the same definitions in numpy.

Most pairs of a fine-tune are equal: blocks without a difference are skipped. Most others are a few bf16 steps apart. If both sides are
stored in bf16, the base's pattern and the step describe such a pair completely: it takes one increment of a joint histogram, from
which `pairs` computes everything else. All other pairs that differ are counted one at a time.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

BLOCK = 256  # pairs: a block stays in the L1 cache from one step to the next

# The joint histogram is (JOINT_STEPS, 2^15), flat: REACH + the step that leads from |w| to |v|, and |w| as a pattern of bf16.
REACH = 7
JOINT_STEPS = 2 * REACH + 1

# Indices into `counts`.
CHANGED, PROBE, DIFFER, NONFINITE, NONFINITE_DIFFER = range(5)
COUNTS = 5

# Columns of `sums`, whose rows are: pairs that differ and did not change, changed pairs.
TOTAL, SQUARE, LARGEST, RELATIVE_TOTAL, RELATIVE_SQUARE, RELATIVE_LARGEST = range(6)
SUMS = 6

_MAGNITUDE = 0x7FFFFFFF
_INFINITY = 0x7F800000
_NAN_PLACE = 0x7FC0
_NORMAL = np.float32(2.0**-126)
_LARGEST = np.float32(np.finfo(np.float32).max)

# Bins (see `sketches`) are numbered by the exponent, from 2^-1074 on, and the first 7 mantissa bits.
_MANTISSA_SHIFT = 52 - 7
_FIRST_BIN = (1074 - 1023) << 7


# Float64 sums may be taken in any order, so that vectors can be added.
@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def _survey(base: NDArray[Any], tuned: NDArray[Any], shift: int) -> tuple[bool, Any, float]:
    """Whether any two patterns of a block differ, the largest |pattern| of both sides, and the sum of the base's squares."""
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
    """The place of an fp32 pattern, rounded to nearest even, among the values of bf16: zeros at 0, negative ones below, NaN beyond."""
    magnitude = pattern & _MAGNITUDE
    if magnitude > _INFINITY:
        return _NAN_PLACE
    place = (magnitude + 0x7FFF + ((magnitude >> 16) & 1)) >> 16
    return place if pattern == magnitude else -place


@njit(nogil=True, cache=True)
def _bin_of(x: Any) -> Any:
    """See `sketches.bin_of`; x is a normal float64."""
    return (np.float64(x).view(np.int64) >> _MANTISSA_SHIFT) + _FIRST_BIN


@njit(nogil=True, cache=True)
def _step_bin(steps: Any) -> Any:
    """See `pair_tables.step_bin`."""
    if steps < 4:
        return steps
    exponent = (np.float64(steps).view(np.int64) >> 52) - 1023
    return exponent + 2


@njit(nogil=True, cache=True, error_model="numpy")
def _count_differing(
    base: NDArray[Any], tuned: NDArray[Any], index: NDArray[np.int64], shift: int, eta: float, counts: NDArray[np.int64],
    sums: NDArray[np.float64], absolute: NDArray[np.int64], relative: NDArray[np.int64], step_counts: NDArray[np.int64],
    changed: NDArray[np.bool_],
) -> None:  # fmt: skip
    """Count the pairs at ``index``, whose patterns differ; see `count_pairs`."""
    for i in index:
        w_pattern, v_pattern = np.int64(base[i]) << shift, np.int64(tuned[i]) << shift
        w_magnitude, v_magnitude = w_pattern & _MAGNITUDE, v_pattern & _MAGNITUDE
        larger_magnitude = max(w_magnitude, v_magnitude)
        if larger_magnitude == 0 or min(w_magnitude, v_magnitude) > _INFINITY:
            if changed.size:  # +0 and -0, or two NaNs
                changed[i] = False
            continue
        steps = abs(_bf16_place(w_pattern) - _bf16_place(v_pattern))
        moved = np.int64(steps != 0)
        counts[DIFFER] += 1
        counts[CHANGED] += moved
        if changed.size:
            changed[i] = moved
        if larger_magnitude >= _INFINITY:
            counts[PROBE] += 1
            counts[NONFINITE_DIFFER] += 1
            continue
        w32, v32 = np.uint32(w_pattern).view(np.float32), np.uint32(v_pattern).view(np.float32)
        w, v = np.float64(w32), np.float64(v32)
        update, larger = abs(v - w), max(abs(w), abs(v))
        share = update / larger
        counts[PROBE] += update > eta * larger
        sums[moved, TOTAL] += update
        sums[moved, SQUARE] += update * update
        sums[moved, LARGEST] = max(sums[moved, LARGEST], update)
        sums[moved, RELATIVE_TOTAL] += share
        sums[moved, RELATIVE_SQUARE] += share * share
        sums[moved, RELATIVE_LARGEST] = max(sums[moved, RELATIVE_LARGEST], share)
        if absolute.size:
            rounded = abs(v32 - w32)
            if _NORMAL <= rounded <= _LARGEST:  # see `PairTables.add`
                update = np.float64(rounded)
                share = np.float64(rounded / max(abs(w32), abs(v32)))
            absolute[moved, _bin_of(update)] += 1
            relative[moved, _bin_of(share)] += 1
            step_counts[_step_bin(steps)] += 1


@njit(nogil=True, cache=True)
def _count_near(base: NDArray[np.uint16], tuned: NDArray[np.uint16], joint: NDArray[np.int64], far: NDArray[np.int64]) -> int:
    """Count a block of pairs of finite bf16 patterns in ``joint``, and set ``far`` to the indices of those that are too far apart.

    Returns how many are too far apart. The difference of two patterns of one sign is the step; that of two signs is out of reach. Equal
    pairs count in the row of step 0.
    """
    found = 0
    for i in range(base.size):
        w = np.int64(base[i])
        step = np.int64(tuned[i]) - w + REACH
        if 0 <= step < JOINT_STEPS:
            joint[np.uint64(step << 15 | w & 0x7FFF)] += 1  # unsigned: numba would check for a negative index
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
    """Count pairs of patterns (n,) of fp32, or of bf16; returns the sum of the base's squares over pairs of finite values.

    shift: what makes fp32 patterns of these, 0 or 16. eta: of the probe. Added to: ``joint`` for bf16, unless it is
    empty, the pairs that are near each other, and to all that follows only the others: ``counts`` (COUNTS,); ``sums`` (2, SUMS) of the
    updates; ``absolute`` and ``relative`` (2, bins) and ``step_counts`` (18,), the histograms of `PairTables`, unless they are empty.
    changed: (n,) where patterns differ, or none; set to where the bf16 values of pairs differ.
    """
    index = np.empty(BLOCK, dtype=np.int64)
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
        marks = changed[start:stop]
        _count_differing(
            base[start:stop], tuned[start:stop], index[:found], shift, eta, counts, sums, absolute, relative, step_counts, marks
        )
    return squares
