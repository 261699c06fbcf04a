"""Centres tables of signs and removes waves from them in compiled loops, for the structure that unrelated matrices share."""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@njit(nogil=True, cache=True)
def _centre(table: Floats, mask: NDArray[np.bool_]) -> None:
    """Subtract from ``table`` its means of rows and columns over ``mask``; from a single row, only its own mean."""
    rows, columns = table.shape
    sums, counts = np.zeros(columns), np.zeros(columns)
    whole, every = 0.0, 0.0
    for r in range(rows):
        total, number = 0.0, 0.0
        for c in range(columns):
            total += table[r, c]
            number += mask[r, c]
            sums[c] += table[r, c]
            counts[c] += mask[r, c]
        whole += total
        every += number
        for c in range(columns):
            table[r, c] -= total / max(number, 1.0)
    if rows > 1:
        for c in range(columns):
            sums[c] = whole / max(every, 1.0) - sums[c] / max(counts[c], 1.0)
        for r in range(rows):
            for c in range(columns):
                table[r, c] += sums[c]


@njit(nogil=True, cache=True)
def centred_signs(table: Floats) -> None:
    """Replace ``table`` by the signs of its values after centring by row and column, centred in the same way.

    0 where a value is 0, and in rows of a single value.
    """
    rows, columns = table.shape
    mask = np.empty((rows, columns), np.bool_)
    for r in range(rows):
        low, high = np.inf, -np.inf
        for c in range(columns):
            low, high = min(low, table[r, c]), max(high, table[r, c])
        for c in range(columns):
            mask[r, c] = (table[r, c] != 0) & (high > low)
    _centre(table, np.ones((rows, columns), np.bool_))
    for r in range(rows):
        for c in range(columns):
            value = table[r, c]
            table[r, c] = mask[r, c] * (1.0 * (value > 0) - 1.0 * (value < 0))
    _centre(table, mask)
    for r in range(rows):
        for c in range(columns):
            table[r, c] *= mask[r, c]


@njit(nogil=True, cache=True)
def remove_peaks(waves: NDArray[Any], factor: float) -> bool:
    """Set to 0 the coefficients of each row of ``waves`` whose energy exceeds ``factor`` times the mean of those that are not 0.

    Repeats until no coefficient does. Returns whether there were any.
    """
    found = False
    energies = np.empty(waves.shape[1])
    for r in range(waves.shape[0]):
        for c in range(waves.shape[1]):
            energies[c] = waves[r, c].real * waves[r, c].real + waves[r, c].imag * waves[r, c].imag
        again = True
        while again:
            again = False
            total, number = 0.0, 0
            for c in range(energies.size):
                total += energies[c]
                number += energies[c] > 0
            limit = factor * (total / max(number, 1))
            for c in range(energies.size):
                if energies[c] > limit:
                    energies[c], waves[r, c] = 0.0, 0.0
                    again = found = True
    return found
