"""Removes structure that repeats throughout a table of signs: two models may share it because both began with the same table."""

from functools import cache

import numpy as np

from analyzers.comparison.parents.rounding import Floats
from analyzers.numerics.sign_kernels import centred_signs, remove_peaks

# Rows are smooth if each resembles the next by this much, as in tables of positions: their equality is neither coincidence nor proof.
_SMOOTH, _FEWEST_ROWS = 0.2, 4
# Components count if their energy exceeds the largest of noise by this factor. The mean that was removed from the rows is not one.
_ABOVE_NOISE = 1.2
# Fourier components of a row or a column stand out at this many times the mean energy, which 0.03% of noise reaches. Shorter axes are not
# searched.
_PEAK, _SHORTEST = 8.0, 16


def signs(values: Floats, width: int) -> Floats:
    """Return (n,) the signs of ``values``, in rows of ``width``, after centring by row and column, then centred in the same way.

    Features that unrelated matrices share (non-negative values, large channels, rows of different norms, a diagonal) affect the means, or a
    few large values; signs contain neither. 0 where a value is 0, and in rows of a single value, since masks are shared too.
    """
    used = values.size // width * width if values.size >= width else values.size
    result = np.zeros(values.size)
    result[:used] = values[:used]
    centred_signs(result[:used].reshape(-1, min(width, used)) if used else result[:0].reshape(0, 1))
    return result


def is_smooth(directions: Floats, rows: int) -> bool:
    """Return whether each of ``rows`` rows of centred signs resembles the next."""
    if rows < _FEWEST_ROWS:
        return False
    table = directions[: directions.size // rows * rows].reshape(rows, -1)
    return bool((table[1:] * table[:-1]).sum() > _SMOOTH * (table[1:] ** 2).sum())


def without_structure(signs: Floats, width: int) -> tuple[Floats, Floats]:
    """Return ``signs``, (n,) in rows of ``width``, tapered, and the same signs without their structure, 0 where a sign is 0.

    Structure consists of a few components of rank 1, products of a factor for the row and one for the column, and of waves along rows or
    columns, as in smooth tables and tables of cosines. The taper (Hann) limits leakage of waves with a fractional number of periods.
    """
    rows = max(1, signs.size // width)
    used = signs[: signs.size // rows * rows] if signs.size < width else signs[: rows * width]
    table = used.reshape(rows, -1)
    left, taper = _without_components(table), np.ones_like(table)
    for axis in (0, 1):
        if table.shape[axis] >= _SHORTEST:
            window = np.expand_dims(_window(table.shape[axis]), 1 - axis)
            taper, left = taper * window, _without_waves(left * window, axis)
    result = np.zeros((2, signs.size))
    result[0, : used.size], result[1, : used.size] = (table * taper).ravel(), (left * (table != 0)).ravel()
    return result[0], result[1]


@cache
def _window(length: int) -> Floats:
    """Return Hann's window, of mean square 1."""
    window = np.hanning(length + 2)[1:-1]
    scaled: Floats = window / np.sqrt(np.square(window).mean())
    return scaled


def _without_components(table: Floats) -> Floats:
    """Remove components of rank 1 that exceed noise (Marchenko and Pastur, 1967) from ``table``, at most half of all."""
    if len(table) > table.shape[1]:
        return _without_components(table.T).T
    gram = table @ table.T
    energies = np.linalg.eigvalsh(gram)[1:]  # the first component belongs to the means, which are removed
    number = most = len(energies)
    edge = _ABOVE_NOISE * (1 + np.sqrt(np.arange(most + 1) / table.shape[1])) ** 2
    while number > (most + 1) // 2 and energies[number - 1] > edge[number] * energies[:number].mean():
        number -= 1
    if number == most:
        return table
    vectors = np.linalg.eigh(gram)[1][:, 1 + number :]
    found: Floats = table - vectors @ (vectors.T @ table)
    return found


def _without_waves(table: Floats, axis: int) -> Floats:
    """Remove Fourier components along ``axis`` that stand out from ``table``, until none does."""
    waves = np.fft.rfft(table if axis else np.ascontiguousarray(table.T))
    if not remove_peaks(waves, _PEAK):
        return table
    found: Floats = np.fft.irfft(waves, table.shape[axis])
    return found if axis else found.T
