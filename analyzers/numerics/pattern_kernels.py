"""Patterns as numbers, in functions that kernels call: `frexp` and `ldexp` would be calls of C."""

import numpy as np
from numba import njit


@njit(nogil=True, cache=True, error_model="numpy")
def exponent_of(value: float) -> int:
    """Return the exponent that `frexp` does, of a number of normal size."""
    return int((np.float64(value).view(np.int64) >> 52) & 0x7FF) - 1022


@njit(nogil=True, cache=True, error_model="numpy")
def power_of_two(exponent: int) -> float:
    """Return 2 to the power of a number."""
    power: float = np.int64((exponent + 1023) << 52).view(np.float64)
    return power


@njit(nogil=True, cache=True, error_model="numpy")
def power_in(low: float, high: float) -> float:
    """Return the power of two between two positive numbers; 0 if there is none."""
    power = power_of_two(exponent_of(low))
    power = power / 2 if power / 2 == low else power
    return power if power <= high else 0.0


@njit(nogil=True, cache=True, error_model="numpy")
def value_of(magnitude: int, mantissa: int, exponent: int) -> float:
    """Return the value of a pattern without sign."""
    stored = magnitude >> mantissa
    whole = (magnitude & ((1 << mantissa) - 1)) + ((1 << mantissa) if stored > 0 else 0)
    return whole * power_of_two(max(stored, 1) - ((1 << (exponent - 1)) - 1) - mantissa)
