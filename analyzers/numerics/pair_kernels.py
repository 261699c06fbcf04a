"""Counts pairs of values of two checkpoints in compiled loops: one pass for everything that compares them.

Most pairs of a fine-tune are equal: blocks without a difference add the squares of one side. Most other pairs are a few bf16 steps apart.
If both sides are stored in bf16, the base's pattern and the step describe such a pair completely: it takes one increment of a joint
histogram, whose cells are evaluated at the end of each chunk. All other unequal pairs are counted one at a time.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

BLOCK = 256  # pairs; a block stays in the L1 cache between the loops over it
PART = 4096  # pairs that share an entry of a Gram matrix, and may be constant together: whole blocks

# The joint histogram is (JOINT_STEPS, 2^15), flat, indexed by REACH + the step from |w| to |v|, and by the bf16 pattern of |w|.
REACH = 15
JOINT_STEPS = 2 * REACH + 1

# Indices into `counts`: pairs changed in bf16, by the probe, and as stored; with a value that is not finite, and those of them that differ;
# finite on the other side only; zero on one side only.
CHANGED, PROBE, DIFFER, NONFINITE, NONFINITE_DIFFER, BROKEN_BASE, BROKEN_TUNED, ZERO_BASE, ZERO_TUNED = range(9)
COUNTS = 9

# Indices into `moments`: sums of squares of both sides over pairs of finite values; then over blocks with a difference, without values that
# no weight has (`BEYOND`): number, sums of w, of v, of w^2, of w v and of v^2.
SQUARE_BASE, SQUARE_TUNED, NUMBER, SUM_BASE, SUM_TUNED, BASE_BASE, BASE_TUNED, TUNED_TUNED = range(8)
MOMENTS = 8

# Columns of `sums`; its rows: pairs that differ without having changed, and changed pairs. Columns of relative updates follow.
TOTAL, SQUARE, LARGEST, RELATIVE = range(4)
SUMS = 6

STEP_BINS = 18

# Bins (see `sketches`) are numbered by the exponent, from that of the smallest fp32 on, and the first 7 mantissa bits.
FIRST_EXPONENT = -149
PER_BINADE = 128
BINS = (130 - FIRST_EXPONENT) * PER_BINADE

BEYOND = 1e6  # no weight is this large: a few broken values must not dominate a norm
_BEYOND = 0x49742400  # its pattern
_MAGNITUDE = 0x7FFFFFFF
_SIGN = 0x80000000
_INFINITY = 0x7F800000
_NAN_PLACE = 0x7FC0
_MANTISSA_SHIFT = 52 - 7
_FIRST_BIN = (1023 + FIRST_EXPONENT) << 7


@njit(nogil=True, cache=True)
def _value(code: Any, shift: Any) -> Any:
    """Return the number of a pattern of fp32, or of bf16 with ``shift`` 16."""
    return np.float64(np.uint32(np.uint32(code) << np.uint32(shift)).view(np.float32))


# Float64 sums may be reassociated, so that vector additions are possible.
@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def _survey(base: NDArray[Any], tuned: NDArray[Any], shift: int) -> tuple[int, Any, Any, float]:
    """Return how many patterns of a block differ, the smallest and largest |pattern| of both sides, and the sum of the base's squares."""
    differing, smallest, largest = 0, np.uint32(_MAGNITUDE), np.uint32(0)
    square = 0.0
    for i in range(base.size):
        w, v = np.uint32(base[i]) << np.uint32(shift), np.uint32(tuned[i]) << np.uint32(shift)
        differing += w != v
        w_size, v_size = np.uint32(w & _MAGNITUDE), np.uint32(v & _MAGNITUDE)
        smallest = min(smallest, np.uint32(min(w_size, v_size)))
        largest = max(largest, np.uint32(max(w_size, v_size)))
        x = np.float64(np.uint32(w).view(np.float32))
        square += x * x
    return differing, smallest, largest, square


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def _products(base: NDArray[Any], tuned: NDArray[Any], shift: int) -> tuple[float, float, float, float]:
    """Return the sums of w, of v, of w v and of v^2 over a block of finite values."""
    w_sum = v_sum = product = square = 0.0
    for i in range(base.size):
        w, v = _value(base[i], shift), _value(tuned[i], shift)
        w_sum += w
        v_sum += v
        product += w * v
        square += v * v
    return w_sum, v_sum, product, square


@njit(nogil=True, cache=True)
def _zeros(base: NDArray[Any], tuned: NDArray[Any], shift: int) -> tuple[int, int]:
    """Return how many values are zero in the base only, and in the tuned side only."""
    of_base = of_tuned = 0
    for i in range(base.size):
        w, v = np.uint32(base[i]) << np.uint32(shift), np.uint32(tuned[i]) << np.uint32(shift)
        no_w, no_v = np.uint32(w & _MAGNITUDE) == 0, np.uint32(v & _MAGNITUDE) == 0
        of_base += no_w & (not no_v)
        of_tuned += no_v & (not no_w)
    return of_base, of_tuned


@njit(nogil=True, cache=True)
def _digest(codes: NDArray[Any], shift: int) -> Any:
    """Return the sum of a hash of each pattern, p (p + c mod 2^32): the same for the same values in any order. -0 counts as +0."""
    total = np.uint64(0)
    for i in range(codes.size):
        x = np.uint32(np.uint32(codes[i]) << np.uint32(shift))
        x = np.uint32(0) if x == np.uint32(_SIGN) else x
        total += np.uint64(x) * np.uint64(np.uint32(x + np.uint32(0x9E3779B1)))
    return total


@njit(nogil=True, cache=True)
def constant_parts(codes: NDArray[Any], shift: int, constant: NDArray[np.bool_]) -> None:
    """Set ``constant``, (parts,), for parts of one value throughout, and leave the others; +0 equals -0."""
    for part in range(constant.size):
        start = part * PART
        stop = min(start + PART, codes.size)
        first = _value(codes[start], shift)
        at: Any = start + 1
        while at < stop and _value(codes[at], shift) == first:
            at += 1
        if at == stop:
            constant[part] = True


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
    """Return the index of the bin of a positive number from 2^`FIRST_EXPONENT` on (see `sketches`)."""
    return (np.float64(x).view(np.int64) >> _MANTISSA_SHIFT) - _FIRST_BIN


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
        beyond = (update > eta * larger) | (not finite)
        updates[i], shares[i] = (update, update / larger) if differs & finite else (0.0, 0.0)
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
    x: NDArray[np.float64], steps: NDArray[np.int64], times: NDArray[np.int64], sums: NDArray[np.float64], first: Any
) -> None:  # fmt: skip
    """Add x and its square, each ``times`` times, to the columns of ``sums`` from ``first`` on, and the largest x."""
    total = square = total_moved = square_moved = 0.0
    for i in range(x.size):
        moved = steps[i] != 0
        once = times[i] * x[i]
        total += 0.0 if moved else once
        total_moved += once if moved else 0.0
        square += 0.0 if moved else once * x[i]
        square_moved += once * x[i] if moved else 0.0
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
    x: NDArray[np.float64], steps: NDArray[np.int64], times: NDArray[np.int64], weight: float, cells: NDArray[np.int64],
    bins: NDArray[np.float64],
) -> None:  # fmt: skip
    """Add ``times`` to the ``bins`` of x, (1 or 2, 2, BINS), and ``weight`` times that to a second table; those of x = 0 are 0."""
    for i in range(x.size):
        cells[i] = (BINS if steps[i] != 0 else 0) + (bin_of(x[i]) if x[i] > 0 else 0)
    for table in range(bins.shape[0]):
        flat, factor = bins[table].reshape(-1), weight if table else 1.0
        for i in range(x.size):
            flat[np.uint64(cells[i])] += factor * times[i]  # unsigned: numba would add a check for negative indices


@njit(nogil=True, cache=True)
def _add_steps(
    steps: NDArray[np.int64], times: NDArray[np.int64], weight: float, cells: NDArray[np.int64], bins: NDArray[np.float64]
) -> None:  # fmt: skip
    """Add ``times`` to the bins of numbers of steps: 0, 1, 2 and 3 have one each, then 4 to 7, 8 to 15 and so on to 32,768 to 65,535."""
    for i in range(steps.size):
        exponent = (np.float64(steps[i]).view(np.int64) >> 52) - 1023
        cells[i] = steps[i] if steps[i] < 4 else exponent + 2
    for table in range(bins.shape[0]):
        factor = weight if table else 1.0
        for i in range(steps.size):
            bins[table, np.uint64(cells[i])] += factor * times[i]


@njit(nogil=True, cache=True)
def count_values(
    w: NDArray[np.float64], v: NDArray[np.float64], steps: NDArray[np.int64], times: NDArray[np.int64], eta: float, weight: float,
    counts: NDArray[np.int64], sums: NDArray[np.float64], absolute: NDArray[np.float64], relative: NDArray[np.float64],
    step_counts: NDArray[np.float64],
) -> None:  # fmt: skip
    """Count pairs of numbers (n,), ``steps`` of bf16 apart, each ``times`` times; equal ones, also two NaNs, are not counted.

    eta: relative threshold of the probe; weight: pairs that one pair stands for. Added to: ``counts`` (COUNTS,), ``sums`` (2, SUMS), and,
    unless they are empty, the histograms of `PairTables`.
    """
    updates, shares = np.empty(BLOCK), np.empty(BLOCK)
    counted, cells = np.empty(BLOCK, dtype=np.int64), np.empty(BLOCK, dtype=np.int64)
    for start in range(0, w.size, BLOCK):
        part = slice(start, min(start + BLOCK, w.size))
        some = slice(0, w[part].size)
        x, y, n = updates[some], shares[some], counted[some]
        _measure(w[part], v[part], steps[part], times[part], eta, counts, x, y)
        _sum(x, steps[part], times[part], sums, np.int64(0))
        _sum(y, steps[part], times[part], sums, np.int64(RELATIVE))
        if absolute.size:
            for i in range(n.size):
                n[i] = times[start + i] if x[i] > 0 else 0
            _add_bins(x, steps[part], n, weight, cells[some], absolute)
            _add_bins(y, steps[part], n, weight, cells[some], relative)
            _add_steps(steps[part], n, weight, cells[some], step_counts)


@njit(nogil=True, cache=True)
def _count_single(
    base: NDArray[Any], tuned: NDArray[Any], shift: int, places: NDArray[np.int64], eta: float, weight: float,
    counts: NDArray[np.int64], sums: NDArray[np.float64], absolute: NDArray[np.float64], relative: NDArray[np.float64],
    step_counts: NDArray[np.float64], changed: NDArray[np.bool_],
) -> None:  # fmt: skip
    """Count the pairs at ``places`` one at a time, as `count_values` does, and set ``changed`` unless it is empty."""
    w, v = np.empty(places.size), np.empty(places.size)
    steps, once = np.empty(places.size, dtype=np.int64), np.ones(places.size, dtype=np.int64)
    for i in range(places.size):
        before, after = np.uint32(base[places[i]]) << np.uint32(shift), np.uint32(tuned[places[i]]) << np.uint32(shift)
        w[i], v[i] = np.uint32(before).view(np.float32), np.uint32(after).view(np.float32)
        steps[i] = abs(_bf16_place(np.int64(np.uint32(before))) - _bf16_place(np.int64(np.uint32(after))))
    if changed.size:
        for i in range(places.size):
            changed[places[i]] = steps[i] != 0
    count_values(w, v, steps, once, eta, weight, counts, sums, absolute, relative, step_counts)


@njit(nogil=True, cache=True)
def _find_differing(base: NDArray[Any], tuned: NDArray[Any], index: NDArray[np.int64]) -> int:
    """Set ``index`` to the indices of the pairs of a block whose patterns differ; return how many do."""
    found = 0
    for i in range(base.size):  # branch-free: a branch would often be mispredicted
        index[found] = i
        found += base[i] != tuned[i]
    return found


@njit(nogil=True, cache=True)
def _count_near(base: NDArray[np.uint16], tuned: NDArray[np.uint16], joint: NDArray[np.uint32], index: NDArray[np.int64]) -> int:
    """Count pairs of finite bf16 patterns, those at ``index``, in ``joint``; leave in ``index`` those that are too far apart.

    Returns how many are too far apart. The difference of two patterns of equal sign is the step; patterns of opposite sign are out of
    reach.
    """
    found = 0
    for i in index:
        w = np.int64(base[i])
        step = np.int64(tuned[i]) - w + REACH
        if 0 <= step < JOINT_STEPS:
            joint[np.uint64(step << 15 | w & 0x7FFF)] += 1  # unsigned: numba would add a check for negative indices
        else:
            index[found] = i
            found += 1
    return found


@njit(nogil=True, cache=True)
def _count_careful(
    base: NDArray[Any], tuned: NDArray[Any], shift: int, differing: int, counts: NDArray[np.int64], moments: NDArray[np.float64],
    product: NDArray[np.float64],
) -> None:  # fmt: skip
    """Count a block with values that are not finite, or larger than any weight: as `count_pairs` does, one pair at a time."""
    for i in range(base.size):
        w, v = _value(base[i], shift), _value(tuned[i], shift)
        w_finite, v_finite = abs(w) < np.inf, abs(v) < np.inf
        counts[BROKEN_BASE] += v_finite & (not w_finite)
        counts[BROKEN_TUNED] += w_finite & (not v_finite)
        if not (w_finite and v_finite):
            counts[NONFINITE] += 1
            continue
        moments[SQUARE_BASE] += w * w
        moments[SQUARE_TUNED] += v * v
        if max(abs(w), abs(v)) < BEYOND:
            product[0] += w * w
            product[1] += w * v
            product[2] += v * v
            if differing:
                moments[NUMBER] += 1
                moments[SUM_BASE] += w
                moments[SUM_TUNED] += v


@njit(nogil=True, cache=True)
def count_pairs(
    base: NDArray[Any], tuned: NDArray[Any], shift: int, eta: float, weight: float, skipped: NDArray[np.bool_], joint: NDArray[np.uint32],
    counts: NDArray[np.int64], sums: NDArray[np.float64], moments: NDArray[np.float64], products: NDArray[np.float64],
    digests: NDArray[np.uint64], absolute: NDArray[np.float64], relative: NDArray[np.float64], step_counts: NDArray[np.float64],
    changed: NDArray[np.bool_],
) -> Any:  # fmt: skip
    """Count pairs of patterns (n,) of fp32, or of bf16; return the index of the first pair whose patterns differ, n if none does.

    shift: left shift that turns the patterns into fp32, 0 or 16. eta, weight: see `count_values`. skipped: (parts,) parts that add nothing
    to ``products`` (parts, 3), the sums of w^2, w v and v^2 below `BEYOND`. joint: the joint histogram for bf16, or empty; pairs near each
    other are added to it, all others to ``counts``, ``sums`` and the tables, as by `count_values`. Added to: ``moments`` (MOMENTS,), and
    ``digests`` (2,), of both sides where a block differs; empty, neither these nor zeros are counted, and of blocks that differ only the
    base's squares. changed: (n,) whether patterns differ, or empty; set to whether the bf16 values of pairs differ.
    """
    index, places = np.empty(BLOCK, dtype=np.int64), np.empty(2 * BLOCK, dtype=np.int64)
    product, single = np.zeros(3), np.int64(0)
    first: Any = np.int64(base.size)
    for start in range(0, base.size, BLOCK):
        stop = min(start + BLOCK, base.size)
        a, b = base[start:stop], tuned[start:stop]
        differing, smallest, largest, square = _survey(a, b, shift)
        product[0], product[1], product[2] = 0.0, 0.0, 0.0
        if largest >= _BEYOND:
            _count_careful(a, b, shift, differing, counts, moments, product)
        else:
            product[0] = product[1] = product[2] = square
            if differing and digests.size:
                w_sum, v_sum, product[1], product[2] = _products(a, b, shift)
                moments[NUMBER] += a.size
                moments[SUM_BASE] += w_sum
                moments[SUM_TUNED] += v_sum
            moments[SQUARE_BASE] += product[0]
            moments[SQUARE_TUNED] += product[2]
        if not skipped[start // PART]:
            for column in range(3):
                products[start // PART, column] += product[column]
        if not differing:
            continue
        for column in range(3):
            moments[BASE_BASE + column] += product[column]
        if digests.size:
            if not smallest:
                of_base, of_tuned = _zeros(a, b, shift)
                counts[ZERO_BASE] += of_base
                counts[ZERO_TUNED] += of_tuned
            digests[0] += _digest(a, shift)
            digests[1] += _digest(b, shift)
        if first == base.size:
            first = np.int64(start)
            while base[first] == tuned[first]:
                first += 1
        found: Any = np.int64(_find_differing(a, b, index))  # for a literal, `_read` would be compiled once more
        if joint.size and largest < _INFINITY:
            found = np.int64(_count_near(a, b, joint, index[:found]))
        for i in range(found):
            places[single + i] = start + index[i]
        single += found
        if single >= BLOCK:
            _count_single(base, tuned, shift, places[:single], eta, weight, counts, sums, absolute, relative, step_counts, changed)
            single = np.int64(0)
    _count_single(base, tuned, shift, places[:single], eta, weight, counts, sums, absolute, relative, step_counts, changed)
    return first
