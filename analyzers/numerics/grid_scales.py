"""Finds, for a group of values, a scale with which the levels of a format give each of them, after rounding to the stored dtype."""

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float32]

# Where products of few bits are halfway between two values, the intervals meet in one point, up to the error of a division.
_TIES = 1 + 2.0**-50
# Values just below a power of two are half as far apart as those above.
_BELOW = 1 - 2.0**-30


@njit(nogil=True, cache=True)
def fit_scales(
    values: Floats,
    spacing: tuple[int, int],
    scale_spacing: tuple[int, int],
    levels: Floats,
    positive: int,
    scales: Floats,
    codes: NDArray[np.uint8],
) -> int:
    """Find a scale for each group; return the index of the first group that has none, or the number of groups.

    values: (groups, n), exact in a dtype with ``spacing``: the bits of its mantissa and the exponent of its smallest normal value;
    scale_spacing: those of the dtype of scales, 0 bits for powers of two. levels: 0 and the magnitudes of the format, in ascending order;
    positive values may have the first ``positive`` of them. scales: (groups,), the result, 1 for a group of zeros; codes: (groups, n), the
    index of the level of each value.
    """
    for g in range(len(values)):
        largest = np.float32(0)
        for value in values[g]:
            if not math.isfinite(value):
                return g
            if abs(value) > abs(largest):
                largest = value
        codes[g] = 0
        scales[g] = 1 if largest == 0 else 0
        top = positive if largest > 0 else len(levels)
        while scales[g] == 0 and top > 1:
            top -= 1
            scales[g] = _fit(values[g], abs(np.float64(largest)), top, spacing, scale_spacing, levels, positive, codes[g])
        if scales[g] == 0:
            return g
    return len(values)


@njit(nogil=True, cache=True)
def _fit(
    group: Floats,
    largest: float,
    top: int,
    spacing: tuple[int, int],
    scale_spacing: tuple[int, int],
    levels: Floats,
    positive: int,
    codes: NDArray[np.uint8],
) -> float:
    """Return a scale with which level ``top`` is the largest magnitude and every value is on its level, or 0.

    The interval of scales of the largest value is narrowed by each value that has one level for all of it; at its ends few scales are left.
    """
    half = _step(largest, spacing) / 2
    low, high = (largest - half) / levels[top], (largest + half) / levels[top]
    step = _step(low, scale_spacing)
    for _ in range(2):
        for value in group:
            if high - low < step:
                break
            magnitude = abs(np.float64(value))
            at = _nearest(levels, magnitude / high)
            if magnitude > 0 and at > 0 and at == _nearest(levels, magnitude / low):
                low = max(low, (magnitude - _step(magnitude * _BELOW, spacing) / 2) / levels[at])
                high = min(high, (magnitude + _step(magnitude, spacing) / 2) / levels[at])
                if low > high * _TIES:
                    return 0.0
    middle = np.rint((low + high) / 2 / step)
    for shift in (0, -1, 1, -2, 2):
        scale = float((middle + shift) * step)
        if low <= scale * _TIES and scale <= high * _TIES and _explains(group, scale, spacing, levels, positive, codes):
            return scale
    return 0.0


@njit(nogil=True, cache=True)
def _explains(group: Floats, scale: float, spacing: tuple[int, int], levels: Floats, positive: int, codes: NDArray[np.uint8]) -> bool:
    """Return whether each value is a level times the scale, in fp32 and then rounded to its dtype; set codes."""
    for i in range(group.size):
        magnitude = abs(np.float64(group[i]))
        at = _nearest(levels, magnitude / scale)
        product = np.float64(np.float32(levels[at] * np.float32(scale)))
        step = _step(product, spacing)
        if np.rint(product / step) * step != magnitude or (group[i] > 0 and at >= positive):
            return False
        codes[i] = at
    return True


@njit(nogil=True, cache=True)
def _nearest(levels: Floats, value: float) -> int:
    """Return the index of the level nearest to a value."""
    first, last = 0, levels.size - 1
    while last - first > 1:
        middle = (first + last) // 2
        if levels[middle] < value:
            first = middle
        else:
            last = middle
    return first if value - levels[first] < levels[last] - value else last


@njit(nogil=True, cache=True)
def _step(magnitude: float, spacing: tuple[int, int]) -> float:
    """Return the distance of neighbouring values of a dtype at a magnitude."""
    step: float = math.ldexp(1.0, max(math.frexp(magnitude)[1] - 1, spacing[1]) - spacing[0])
    return step
