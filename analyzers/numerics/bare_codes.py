"""Tells codes of a quantizer whose scale was never applied from weights, by their values."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.numerics.formats import FP4_E2M1, FP8_E4M3, FP8_E5M2

FEWEST = 64  # values from which on an answer is given

# A quantizer scales the largest weight of a tensor, row or block to its largest code. Weights have magnitudes far below these.
_FLOATS = (("fp8 E4M3", FP8_E4M3, 128.0, 24), ("fp8 E5M2", FP8_E5M2, 8192.0, 12), ("fp4 E2M1", FP4_E2M1, 6.0, 11))
# Smallest and largest code, and the least range and number of distinct codes that weights use
_INTEGERS = (("int4", -8, 7, 11, 9), ("uint4", 0, 15, 10, 9), ("int8", -128, 127, 64, 24), ("uint8", 0, 255, 64, 24))
# Codes of weights crowd around the one for 0: at least this share of them lies within a quarter of their range. Positions and tables of
# counts are spread evenly, or crowd at an end; in tables of indices, most neighbours differ by the same number.
_CROWDED, _STEPS = 0.3, 0.5


def bare_codes(values: NDArray[Any], counts: NDArray[Any] | None = None) -> str | None:
    """Return the format that all of ``values`` are codes of, such as "fp8 E4M3" or "int8"; None if they may be weights.

    values: (n,) floats in the order in which they are stored; or distinct ones with ``counts``, (n,) how often each occurs. Ternary and
    one-valued tensors, masks, positions and anything else that uses few of a format's codes, or uses them evenly, may be weights.
    """
    values = np.asarray(values, np.float64)
    if counts is None:
        if not np.isfinite(values).all() or _steady(values):
            return None
        values, counts = np.unique(values, return_counts=True)
    values, counts = values[counts > 0], counts[counts > 0]
    if counts.sum() < FEWEST or not np.isfinite(values).all():
        return None
    nonzero = np.unique(np.abs(values[values != 0]))
    distinct, largest = np.unique(values).size, float(nonzero.max(initial=0))
    for name, form, least, fewest in _FLOATS:
        if least <= largest <= form.largest and distinct >= fewest and values.min() < 0 and form.is_exact(nonzero).all():
            return name
    if not (values == np.floor(values)).all():
        return None
    low, high = values.min(), values.max()
    for name, smallest, most, span, fewest in _INTEGERS:
        if smallest <= low and high <= most and high - low >= span and distinct >= fewest:
            return name if _crowded(values, counts) else None
    return None


def _steady(values: NDArray[np.float64]) -> bool:
    steps, numbers = np.unique(np.diff(values), return_counts=True)
    return bool(steps.size and steps[numbers.argmax()] != 0 and numbers.max() >= _STEPS * values.size)


def _crowded(values: NDArray[np.float64], counts: NDArray[Any]) -> bool:
    order = np.argsort(values)
    values, counts = values[order], counts[order]
    total, low, high = counts.sum(), values[0], values[-1]
    median = values[np.searchsorted(np.cumsum(counts), total / 2)]
    near = np.abs(values - median) <= (high - low) / 8
    central = abs(median - (low + high) / 2) <= (high - low) / 4
    return bool(central and counts[near].sum() >= _CROWDED * total)
