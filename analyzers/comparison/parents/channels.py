"""Undoes the factors by which calibrated methods scale the channels of matrices, before a tensor is held against its source.

AWQ multiplies the input channels of a matrix and divides by the same factors what comes before: a norm, whose factors all matrices behind
it share, or the rows of another matrix. Where a norm explains a tensor, nothing else may; else the factors of rows and columns are fitted,
and only an error that is that of rounding tells that they are the only change.
"""

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np

from analyzers.comparison.counting import Floats
from analyzers.comparison.table import Table
from analyzers.numerics.copy_kernels import FITTED_SQUARE, SCALED_ERROR, SCALED_NEAREST, UNDONE_ERROR, UNDONE_NEAREST

# Largest error of a tensor, in units of that of rounding, if factors of channels are all that changed; and of the usual one of tensors.
_ORDINARY, _MOST = 2.0, 4.0
# Least distance from 1 of a factor of the whole tensor; and least share of the source that a norm's factors must reach.
_FACTOR, _REACHED = 0.1, 0.5
# Values of a column that tell that it is lost: its squared correlation with the source, and least squared error in units of rounding.
_FEW, _CORRELATED, _BEYOND = 16, 0.25, 5.0
# Least factor of a channel, which float32 resolves.
_TINY = 1e-6


class Scaling(NamedTuple):
    """How a tensor comes from its source, by factors of channels.

    kind: "none" without any, those of a "norm", or its "own"; "factor": one factor for all, besides those; "not": no factors explain it;
    "unknown": too few values tell. ratio: the error in units of that of rounding; error, nearest, square: sums of squares, once the factors
    are undone: of errors, of those of rounding, and of the source. norm: number of its group; lost: channels that are not the source's.
    """

    kind: Literal["none", "norm", "own", "factor", "not", "unknown"]
    ratio: float = np.inf
    error: float = 0.0
    nearest: float = 0.0
    square: float = 0.0
    factor: float = 1.0
    norm: int | None = None
    lost: int = 0


class Channels:
    """The factors of channels of side ``x`` as a copy of side ``p``. numbers: of the groups whose channels may be scaled."""

    def __init__(self, table: Table, x: int, p: int, numbers: list[int]) -> None:
        self._table, self._columns, self._numbers = table, table.columns_of[x, p], numbers
        self._fitted = {number: _fitted(table.channels[x, p][number]) for number in numbers}
        self._norms: dict[int | None, list[tuple[int | None, Floats]]] = {}
        for number, sums in self._columns.items():
            if len(table.groups[number].base.shape) == 1 and (factors := list(_factors(sums.astype(np.float64)))):
                self._norms.setdefault(table.groups[number].base.layer, []).extend((number, each) for each in factors)
        plain = {number: list(self._by_norms(number)) for number in numbers}
        best = [min([self._fitted[number].ratio, *(each.ratio for each in found)]) for number, found in plain.items()]
        usual = float(np.median([ratio for ratio in best if np.isfinite(ratio)] or [1.0]))
        self._limit = _ORDINARY * min(max(1.0, usual), _MOST)
        self._explained = {number: self._chosen(found) for number, found in plain.items()}
        behind: dict[str, list[bool]] = {}
        for number, found in self._explained.items():
            behind.setdefault(self._kind(number), []).append(found is not None and found.kind == "norm")
        self._behind = {kind for kind, each in behind.items() if 2 * sum(each) > len(each)}
        self._failing: dict[int | None, list[int]] = {}
        for number in numbers:
            if self._explained[number] is None and self._kind(number) in self._behind:
                self._failing.setdefault(table.groups[number].base.layer, []).append(number)
        self._found = {number: self._judge(number) for number in numbers}
        self.norms = {found.norm for found in self._explained.values() if found is not None and found.norm is not None}
        # A norm whose only matrix is damaged is as those of other layers.
        of_others = {self._kind(norm) for norm in self.norms}
        failing = {layer for layer, found in self._failing.items() if not self._is_of_the_norm(layer)}
        self.norms |= {number for number in self._columns if self._kind(number) in of_others and table.groups[number].base.layer in failing}

    def of(self, number: int) -> Scaling:
        """Return how a tensor comes from its source."""
        return self._found[number]

    def _judge(self, number: int) -> Scaling:
        explained, fitted, lost = self._explained[number], self._fitted[number], self._lost(number)
        if explained is not None:
            return explained._replace(kind="not", lost=lost) if lost else explained
        layer = self._table.groups[number].base.layer
        if lost or (number in self._failing.get(layer, ()) and not self._is_of_the_norm(layer)):
            return Scaling("not", lost=lost)
        if not np.isfinite(fitted.ratio):
            return Scaling("unknown")
        return fitted if fitted.ratio <= self._limit else Scaling("not")

    def _is_of_the_norm(self, layer: int | None) -> bool:
        """Return whether a norm, and not the matrices behind it, is damaged: several have factors, but not its."""
        failing = self._failing[layer]
        return len(failing) > 1 and all(self._fitted[number].ratio <= self._limit for number in failing)

    def _kind(self, number: int) -> str:
        """Return what tensors of all layers have in common: their name without numbers."""
        return re.sub(r"\d+", "*", self._table.groups[number].base.name)

    def _chosen(self, found: list[Scaling]) -> Scaling | None:
        """Return the best of the explanations that leave an ordinary error, those without a factor of the whole first."""
        ordinary = [each for each in found if each.ratio <= self._limit]
        plain = [each for each in ordinary if each.kind != "factor"]
        return min(plain or ordinary, key=lambda each: each.ratio, default=None)

    def _by_norms(self, number: int) -> Iterator[Scaling]:
        """Yield what the factors of each norm of the layer, and none, leave of a tensor."""
        if number not in self._columns:
            return
        columns = self._columns[number].astype(np.float64)
        width = columns.shape[1]
        for norm, c in [(None, np.ones(width)), *self._norms.get(self._table.groups[number].base.layer, ())]:
            if c.size != width:
                continue
            known = np.isfinite(c) & (columns[2] > 0)
            if columns[2, known].sum() < _REACHED * columns[2].sum():
                continue
            (xx, xp, pp, step), c = columns[:, known], c[known]
            if not step.any():
                continue
            whole = float((c * xp).sum() / (c * c * pp).sum())
            for factor in (1.0, *([whole] if abs(whole - 1) > _FACTOR else [])):
                f = factor * c
                error, undone = xx - 2 * f * xp + f * f * pp, xx / c / c - 2 * xp / c + pp
                ratio = float(np.sqrt(max(0.0, error.sum()) / step.sum()))
                kind: Literal["none", "norm", "factor"] = "factor" if factor != 1 else "norm" if norm is not None else "none"
                yield Scaling(kind, ratio, max(0.0, float(undone.sum())), float((step / c / c).sum()), float(pp.sum()), factor, norm)

    def _lost(self, number: int) -> int:
        """Count the columns that do not resemble the source's, if all values were read."""
        group = self._table.groups[number]
        if number not in self._columns or not self._table.plan.exact or group.base.elements < _FEW * group.base.shape[-1]:
            return 0
        xx, xp, pp, step = self._columns[number].astype(np.float64)
        with np.errstate(all="ignore"):
            left = xx - np.where(pp > 0, xp * xp / pp, 0.0)
        return int(((xp * np.abs(xp) < _CORRELATED * xx * pp) & (left > _BEYOND * step)).sum())


def _fitted(sums: Floats) -> Scaling:
    """Return what factors of rows and columns leave."""
    nearest = float(sums[SCALED_NEAREST])
    ratio = float(np.sqrt(sums[SCALED_ERROR] / nearest)) if nearest > 0 else np.inf
    return Scaling("own", ratio, float(sums[UNDONE_ERROR]), float(sums[UNDONE_NEAREST]), float(sums[FITTED_SQUARE]))


def _factors(norm: Floats) -> Iterator[Floats]:
    """Yield the factors that a norm has lost, if it has changed: its weights, or these plus 1, are the source's by them."""
    xx, xp, pp, _ = norm
    if np.array_equal(xx, pp) and np.array_equal(xp, pp):
        return
    weights = np.sqrt(xx) * np.where(xp < 0, -1, 1), np.where(pp > 0, np.sqrt(pp), np.nan)
    for x, p in (weights, (1 + weights[0], 1 + weights[1])):
        with np.errstate(all="ignore"):
            factors = np.where(np.abs(x) > _TINY * np.abs(p), p / x, np.nan)
        yield np.where(np.abs(factors) > _TINY, factors, np.nan)
