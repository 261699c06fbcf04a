"""Tells whether two matrices are related weight by weight: by the agreement of their signs beyond the structure that both may share, and
by equal values beyond chance."""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from analyzers.comparison.counting import Floats, Ints, Looked
from analyzers.comparison.table import Table

# A value that makes up more than this share of both sides is common, so that equal positions prove nothing. 0 is always common.
_COMMON = 1 / 256
_PATTERNS = 1 << 16
# Rows are smooth if each resembles the next by this much, as in tables of positions: their equality is neither coincidence nor proof.
_SMOOTH, _FEWEST_ROWS = 0.2, 4
# Components count if their energy exceeds the largest of noise by this factor. The mean that was removed from the rows is not one.
_ABOVE_NOISE = 1.2
# Fourier components of a row or a column stand out at this many times the mean energy, which 0.03% of noise reaches. Shorter axes are not
# searched.
_PEAK, _SHORTEST = 8.0, 16


class Agreement(NamedTuple):
    """The agreement of centred signs S and T without their structure, its deviation by chance, and the agreement with their structure."""

    value: float | None
    null: float | None
    shared: float | None

    def beyond(self, least: float, deviations: float) -> bool:
        """Return whether signs agree by ``least`` and by more deviations than that of chance."""
        return (self.value or 0.0) >= max(least, deviations * (self.null or 0.0))


class _Piece(NamedTuple):
    """A piece that was looked into: bf16 patterns of each side, None of a side that lacks it; which sides are smooth."""

    number: int
    patterns: list[Ints | None]
    smooth: list[bool]


class Likeness:
    """What the pieces of a table that were looked into say of two sides."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._signs = np.zeros((len(table.groups), len(table.pairs), 5))  # S.S, S.T without structure, T.T, sum (s t)^2 without it, S.T
        self._pieces = [self._look(piece) for piece in table.looked]
        table.looked = []

    def _look(self, piece: Looked) -> _Piece:
        usable = np.isfinite(piece.values)
        values = np.where(usable, piece.values, 0.0).astype(np.float64)
        present: list[bool] = np.any(usable, axis=1).tolist()
        tables = [signs(each, piece.width) if held else None for each, held in zip(values, present, strict=True)]
        smooth = [each is not None and is_smooth(each, each.size // piece.width) for each in tables]
        clean = [None if each is None else without_structure(each, piece.width) for each in tables]
        for number, (i, j) in enumerate(self._table.pairs):
            x, p = clean[i], clean[j]
            if x is not None and p is not None and not smooth[i] and not smooth[j]:
                (s, left), (t, other) = x, p
                square = np.square(left * other).sum()
                self._signs[piece.number, number] += (s @ (s * (t != 0)), (left * other).sum(), t @ (t * (s != 0)), square, s @ t)
        return _Piece(piece.number, [_patterns(each) if held else None for each, held in zip(piece.values, present, strict=True)], smooth)

    def agreement(self, x: int, p: int, chosen: Any = None) -> Agreement:
        """Return the agreement of two sides over some tensors, (t,) a mask, by default all."""
        signs, weights = self._signs[:, self._pair(x, p)], self._table.weights
        weights = weights if chosen is None else weights * chosen
        s, product, t, _, both = (weights @ signs).tolist()
        return _agreement(s, product, t, float(np.square(weights) @ signs[:, 3]), both)

    def of_tensor(self, x: int, p: int, number: int) -> Agreement:
        """Return the agreement of two sides in one tensor."""
        return _agreement(*self._signs[number, self._pair(x, p)].tolist())

    def _pair(self, x: int, p: int) -> int:
        return self._table.pairs.index((min(x, p), max(x, p)))

    def looked_into(self, x: int, p: int) -> Ints:
        """Return the numbers of the tensors whose signs were compared."""
        return np.flatnonzero(self._signs[:, self._pair(x, p), 0] > 0)

    def figures(self, x: int, p: int) -> dict[str, Any]:
        """Return the agreement of two sides, and the equal values that chance would give, as fields of a `Candidate`.

        equal_by_chance: the sum of p_k q_k over bf16 patterns, with +0 = -0.
        """
        of_x, of_p, equal, smooth = (np.zeros(_PATTERNS) for _ in range(4))
        smooth_values = 0
        for piece in self._pieces:
            a, b = piece.patterns[x], piece.patterns[p]
            if a is None or b is None:
                continue
            of_x += np.bincount(a, minlength=_PATTERNS)
            of_p += np.bincount(b, minlength=_PATTERNS)
            same = np.bincount(a[a == b], minlength=_PATTERNS)
            if piece.smooth[x] or piece.smooth[p]:
                smooth += same
                smooth_values += a.size
            else:
                equal += same
        total = float(of_x.sum())
        if not total:
            return {}
        common = (np.minimum(of_x, of_p) > _COMMON * total) | (np.arange(_PATTERNS) == 0)
        telling = int(total - smooth_values - equal[common].sum())
        agreement, by_chance = self.agreement(x, p), float(of_x[~common] @ of_p[~common]) / total
        return {
            "agreement": agreement.value,
            "agreement_null": agreement.null,
            "shared": agreement.shared,
            "equal_by_chance": float(of_x @ of_p) / total**2,
            "telling": telling,
            "telling_equal": float(equal[~common].sum()) / telling if telling else None,
            "telling_by_chance": by_chance / telling if telling else None,
        }


def _agreement(s: float, product: float, t: float, square: float, both: float) -> Agreement:
    norms = float(np.sqrt(s * t))
    return Agreement(product / norms, float(np.sqrt(square)) / norms, both / norms) if norms > 0 else Agreement(None, None, None)


def _patterns(values: Floats) -> Ints:
    """Return the bf16 patterns of values, rounded to nearest even, with +0 for -0."""
    bits = values.astype(np.float32).view(np.uint32).astype(np.int64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(rounded == 0x8000, 0, np.minimum(rounded, _PATTERNS - 1))


# Structure that repeats throughout a table of signs: two models may share it because both began with the same table


def signs(values: Floats, width: int) -> Floats:
    """Return (n,) the signs of ``values``, in rows of ``width``, after centring by row and column, then centred in the same way.

    Features that unrelated matrices share (non-negative values, large channels, rows of different norms, a diagonal) affect the means, or a
    few large values; signs contain neither. 0 where a value is 0, and in rows of a single value, since masks are shared too.
    """
    used = values.size // width * width if values.size >= width else values.size
    result = np.zeros(values.size)
    if used:
        table = values[:used].reshape(-1, min(width, used))
        mask = (table != 0) & (table.max(axis=1) > table.min(axis=1))[:, None]
        result[:used] = (_centred(mask * np.sign(_centred(table, np.ones_like(mask))), mask) * mask).ravel()
    return result


def _centred(table: Floats, mask: NDArray[np.bool_]) -> Floats:
    """Return ``table`` without its means of rows and columns over ``mask``; of a single row, without its own mean."""
    rows = table.sum(axis=1, keepdims=True) / np.maximum(mask.sum(axis=1, keepdims=True), 1)
    columns = table.sum(axis=0) / np.maximum(mask.sum(axis=0), 1) - table.sum() / max(1, mask.sum()) if len(table) > 1 else 0.0
    found: Floats = table - rows - columns
    return found


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
    energies = np.square(waves.real) + np.square(waves.imag)
    peaks = _peaks(energies)
    if not peaks.any():
        return table
    while peaks.any():
        energies[peaks] = waves[peaks] = 0.0
        peaks = _peaks(energies)
    found: Floats = np.fft.irfft(waves, table.shape[axis])
    return found if axis else found.T


def _peaks(energies: Floats) -> NDArray[np.bool_]:
    """Return which energies exceed `_PEAK` times the mean of those in their row that are not 0."""
    return np.asarray(energies > _PEAK * energies.sum(axis=1, keepdims=True) / np.maximum((energies > 0).sum(axis=1, keepdims=True), 1))
