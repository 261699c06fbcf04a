"""Removes structure that repeats throughout a table of signs: two models may share it because both began with the same table."""

import numpy as np

from analyzers.parents.rounding import Floats

# Components count if their energy exceeds the largest of noise by this factor. The mean that was removed from the rows is not one.
_ABOVE_NOISE = 1.2
# Fourier components of a row or a column stand out at this many times the mean energy, which 0.03% of noise reaches. Shorter axes are not
# searched.
_PEAK, _SHORTEST = 8.0, 16


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
            window = np.hanning(table.shape[axis] + 2)[1:-1]
            window = np.expand_dims(window / np.sqrt(np.square(window).mean()), 1 - axis)
            taper, left = taper * window, _without_waves(left * window, axis)
    result = np.zeros((2, signs.size))
    result[0, : used.size], result[1, : used.size] = (table * taper).ravel(), (left * (table != 0)).ravel()
    return result[0], result[1]


def _without_components(table: Floats) -> Floats:
    """Remove components of rank 1 that exceed noise (Marchenko and Pastur, 1967) from ``table``, at most half of all."""
    if len(table) > table.shape[1]:
        return _without_components(table.T).T
    energies, vectors = np.linalg.eigh(table @ table.T)
    energies, vectors = energies[1:], vectors[:, 1:]  # the first component belongs to the means, which are removed
    number = most = len(energies)
    edge = _ABOVE_NOISE * (1 + np.sqrt(np.arange(most + 1) / table.shape[1])) ** 2
    while number > (most + 1) // 2 and energies[number - 1] > edge[number] * energies[:number].mean():
        number -= 1
    found: Floats = table - vectors[:, number:] @ (vectors[:, number:].T @ table)
    return found


def _without_waves(table: Floats, axis: int) -> Floats:
    """Remove Fourier components along ``axis`` that stand out from ``table``, until none does."""
    waves = np.fft.rfft(table, axis=axis)
    energies = np.square(np.abs(waves))
    while True:
        mean = energies.sum(axis, keepdims=True) / np.maximum((energies > 0).sum(axis, keepdims=True), 1)
        peaks = energies > _PEAK * mean
        if not peaks.any():
            break
        energies[peaks] = 0
    found: Floats = np.fft.irfft(np.where(energies > 0, waves, 0), table.shape[axis], axis=axis)
    return found
