"""Tells whether two matrices are related weight by weight: by the agreement of their signs beyond the structure that both may share, and
by equal values beyond chance."""

from typing import Any, NamedTuple

import numpy as np

from analyzers.comparison.counting import Floats, Ints, Looked
from analyzers.comparison.parents.structure import is_smooth, signs, without_structure
from analyzers.comparison.table import Table

# A value that makes up more than this share of both sides is common, so that equal positions prove nothing. 0 is always common.
_COMMON = 1 / 256
_PATTERNS = 1 << 16


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
