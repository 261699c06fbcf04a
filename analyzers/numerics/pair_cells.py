"""Where the compiled loops count pairs: one array of small counters, and what each cell of it stands for.

A pair of bf16 values of the same sign that lie a few steps apart, as nearly all pairs of a fine-tune do, is told completely by the
pattern of the first and the step: a ``JOINT`` cell. All other pairs count in an ``ABSOLUTE`` or ``TINY`` cell and in a ``RELATIVE`` one.
"""

import numpy as np
from numpy.typing import NDArray

from analyzers.numerics.sketches import FIRST_EXPONENT, PER_BINADE

Ints = NDArray[np.int64]

# (2, 2^15): whether the pair changed, and the high half of the fp32 pattern of |v - w|. 0 is no update.
ABSOLUTE = 0
PLANE = 1 << 15

# (18, 3202): the bin of steps of bf16 (see `step_bin`), and the high half of the pattern of the relative update, from 2^-24 (two
# different fp32 values are no closer) to 2; the first cell is for what is smaller.
STEP_BINS = 18
RELATIVE = ABSOLUTE + 2 * PLANE
RELATIVE_FIRST = (127 - 24) * PER_BINADE - 1
RELATIVE_PLANE = 128 * PER_BINADE - RELATIVE_FIRST + 1

# (2, 23 binades of 128): whether the pair changed, and |v - w| from 2^-149 to 2^-126.
TINY = RELATIVE + STEP_BINS * RELATIVE_PLANE
TINY_PLANE = 23 * PER_BINADE

# (16, 2^15): 7 + the step away from zero that leads from |w| to |v|, and |w| as a pattern of bf16. The last row holds larger steps, which
# count elsewhere, and the middle one pairs without a step that lay between others: neither means anything. Patterns that are
# often met lie side by side, and so in few lines of the nearest cache.
JOINT = TINY + 2 * TINY_PLANE
JOINT_ROW = 1 << 15
JOINT_CELLS = 16 * JOINT_ROW
REACH = 7

CELLS = JOINT + JOINT_CELLS
GROUP = 64  # pairs come to the loops in whole groups: which of one differ fits the bits of a word
REST = 1 << 16  # pairs that the loop over bf16 may hand on at a time
MOST = 0xFFFFFFFF  # pairs before a cell could overflow

# What is counted besides: indices into an array of counts.
CHANGED, PROBE, DIFFER, NONFINITE, NONFINITE_DIFFER = range(5)
COUNTS = 5

# And summed: three sums that go with counts alone; then, of the updates of all pairs and of those that changed, six each.
BASE_SQUARE, UPDATE_SQUARE, UPDATE_MAX = range(3)
ALL, MOVED = 3, 9
TOTAL, SQUARE, RELATIVE_TOTAL, RELATIVE_SQUARE, LARGEST, RELATIVE_LARGEST = range(6)
SUMS = 15


def step_bin(steps: Ints) -> Ints:
    """(n,) the bin of numbers of steps: 0, 1, 2 and 3 have one each, then 4 to 7, 8 to 15 and so on to 32,768 to 65,535."""
    return np.where(steps < 4, steps, np.frexp(steps)[1] + 1)


def occupied(cells: NDArray[np.uint32], first: int, size: int) -> tuple[Ints, Ints]:
    """Which of ``size`` cells from ``first`` on have counts, and their counts."""
    part = cells[first : first + size]
    index = np.flatnonzero(part != 0)
    return index, part[index].astype(np.int64)


def absolute_bins(cells: NDArray[np.uint32], plane: int) -> tuple[Ints, Ints]:
    """Bins (see `sketches`) of the absolute updates on a plane, and their counts."""
    index, counts = occupied(cells, ABSOLUTE + plane * PLANE + 1, PLANE - 1)
    tiny, tiny_counts = occupied(cells, TINY + plane * TINY_PLANE, TINY_PLANE)
    bins = index + 1 + (-127 - FIRST_EXPONENT) * PER_BINADE
    return np.concatenate([tiny + (-149 - FIRST_EXPONENT) * PER_BINADE, bins]), np.concatenate([tiny_counts, counts])


def relative_bins(cells: NDArray[np.uint32], plane: int) -> tuple[Ints, Ints]:
    """Bins of the relative updates on a plane of `STEP_BINS`, and their counts."""
    index, counts = occupied(cells, RELATIVE + plane * RELATIVE_PLANE + 1, RELATIVE_PLANE - 1)
    return index + 1 + RELATIVE_FIRST + (-127 - FIRST_EXPONENT) * PER_BINADE, counts


def joint_pairs(cells: NDArray[np.uint32]) -> tuple[Ints, Ints, Ints]:
    """Patterns |w| and |v| of the pairs that a few steps separate, and how often each pair occurs."""
    index, counts = occupied(cells, JOINT, JOINT_CELLS)
    row, pattern = np.divmod(index, JOINT_ROW)
    told = (row != REACH) & (row != 15)
    return pattern[told], (pattern + row - REACH)[told], counts[told]
