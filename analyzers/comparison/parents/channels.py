"""Undoes the factors by which calibrated methods scale the channels of matrices, before a tensor is held against its source.

AWQ multiplies the input channels of a matrix and divides by the same factors what comes before: a norm, whose factors all matrices behind
it share, or the rows of another matrix, such as up_proj before down_proj. Factors that nothing undoes are damage.
"""

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np

from analyzers.comparison.counting import Floats
from analyzers.comparison.table import Table
from analyzers.numerics.copy_kernels import FITTED_SQUARE, ROWS_LOST, SCALED_ERROR, SCALED_NEAREST, UNDONE_ERROR, UNDONE_NEAREST

# Largest error of a tensor, in units of that of rounding, if factors of channels are all that changed; and of the usual one of tensors.
_ORDINARY, _MOST = 2.0, 2.0
# Largest squared error, in units of x, of values by factors of a norm that were rounded to 16 bits.
_ROUNDED = 0.01**2
# Share of an error without factors below which those of a norm explain something.
_LESS = 0.9
# Least distance from 1 of a factor of the whole tensor; and least share of the source that a norm's factors must reach.
_FACTOR, _REACHED = 0.1, 0.5
# Values of a column that tell that it is lost: its squared correlation with the source, and least squared error in units of rounding.
_FEW, _CORRELATED, _BEYOND = 16, 0.25, 5.0
# Usual deviation of factors that undo each other, or are the same, and fewest channels that tell.
_AGREE, _CHANNELS = 0.1, 16
# Matrices of a layer with which one is compared for a norm that is lost.
_COMPARED = 8

Kind = Literal["none", "norm", "own", "unread", "factor", "not", "unknown"]


class Scaling(NamedTuple):
    """How a tensor comes from its source, by factors of channels.

    kind: "none" without any, those of a "norm", or its "own", which another tensor undoes; "unread": of its own, which nothing that can be
    compared undoes; "factor": one factor for all, besides those;
    "not": no factors explain it; "unknown": too few values tell. ratio: the error in units of that of rounding; error, nearest, square:
    sums of squares, once the factors are undone: of errors, of those of rounding, and of the source. norm: number of its group; pair: of
    the matrix whose factors should undo its own; lost, lost_rows: columns and rows that are not the source's.
    """

    kind: Kind
    ratio: float = np.inf
    error: float = 0.0
    nearest: float = 0.0
    square: float = 0.0
    factor: float = 1.0
    norm: int | None = None
    pair: int | None = None
    lost: int = 0
    lost_rows: int = 0


class Product(NamedTuple):
    """Factors of the rows of a matrix and of the columns of another that multiply to one ``factor``; rows, columns: their numbers.

    middle: between the logarithms of the least and the largest inverse of the former.
    """

    rows: int
    columns: int
    factor: float
    middle: float


class Channels:
    """The factors of channels of side ``x`` as a copy of side ``p``. numbers: of the groups whose channels may be scaled."""

    def __init__(self, table: Table, x: int, p: int, numbers: list[int]) -> None:
        self._table, self._sides, self._numbers = table, (x, p), numbers
        self._modules, self._layers = dict[str, list[int]](), dict[int | None, list[int]]()
        for number, group in enumerate(table.groups):
            if len(group.base.shape) == 2:
                self._modules.setdefault(_module(group.base.name), []).append(number)
        for number in numbers:
            self._layers.setdefault(self._layer(number), []).append(number)
        self._columns = {n: table.columns_of[x, p][n].astype(np.float64) for n in numbers if n in table.columns_of[x, p]}
        by_norms = {number: list(self._by_norms(number)) for number in numbers}
        self._by_rows = {number: _by_rows(table.channels[x, p][number]) for number in numbers}
        self._by_columns = {number: self._by_own_columns(number) for number in numbers}
        best = [min(fit.ratio for fit in (*by_norms[n], self._by_rows[n], self._by_columns[n])) for n in numbers]
        usual = float(np.median([ratio for ratio in best if np.isfinite(ratio)] or [1.0]))
        self._limit = _ORDINARY * min(max(1.0, usual), _MOST)
        self._plain = {number: self._plainest(fits) for number, fits in by_norms.items()}
        self._scalings = {number: self._judge(number) for number in numbers}
        norms = {scaling.norm for scaling in self._plain.values() if scaling is not None and scaling.norm is not None}
        self.scaled = {norm: found for norm in sorted(norms) if (found := self._factor_of(norm)) is not None}
        self.norms = norms - set(self.scaled)
        # A norm whose only matrix is damaged is as those of other layers.
        kinds = {self._kind(norm) for norm in self.norms}
        failing = {self._layer(number) for number, scaling in self._scalings.items() if scaling.kind in ("not", "unknown")}
        others = table.norms.numbers(x, p) - set(self.scaled)
        self.norms |= {norm for norm in others if self._kind(norm) in kinds and self._layer(norm) in failing}

    def of(self, number: int) -> Scaling:
        """Return how a tensor comes from its source."""
        return self._scalings[number]

    def _judge(self, number: int) -> Scaling:
        plain, by_rows, lost = self._plain[number], self._by_rows[number], self._lost(number)
        if plain is not None:
            if lost or by_rows.lost_rows:
                return plain._replace(kind="not", lost=lost, lost_rows=by_rows.lost_rows)
            if plain.kind == "norm" and by_rows.ratio <= self._limit:  # which rounds each value
                return plain._replace(nearest=by_rows.nearest * plain.square / by_rows.square)
            return plain
        by_columns = self._by_columns[number]
        own = min(by_rows, by_columns, key=lambda fit: fit.ratio)
        if not np.isfinite(own.ratio):
            return Scaling("unknown")
        if own is by_columns and lost:
            return Scaling("not", lost=lost)
        if own.ratio <= self._limit and not own.lost_rows:
            return self._undone_by_another(number, own)
        if self._is_behind_a_lost_norm(number):
            return own._replace(kind="unread")
        return Scaling("not", lost_rows=own.lost_rows) if own.ratio <= self._limit else Scaling("not", lost=lost)

    def _layer(self, number: int) -> int | None:
        return self._table.groups[number].base.layer

    def _kind(self, number: int) -> str:
        """Return what tensors of all layers have in common: their name without numbers."""
        return re.sub(r"\d+", "*", self._table.groups[number].base.name)

    # Factors of a norm, or none

    def _by_norms(self, number: int) -> Iterator[Scaling]:
        """Yield what the factors of each norm of the layer, and none, leave of a tensor."""
        if number not in self._columns:
            return
        columns, matrix = self._columns[number], self._table.groups[number].base
        for norm, factors in self._table.norms.of(self._sides, matrix):
            usable = (factors != 0) & (columns[2] > 0)
            if columns[2, usable].sum() < _REACHED * columns[2].sum():
                continue
            (xx, xp, pp, step, _), factors = columns[:, usable], factors[usable]
            if not step.any():
                continue
            whole = float((factors * xp).sum() / (factors * factors * pp).sum())
            for factor in (1.0, *([whole] if abs(whole - 1) > _FACTOR else [])):
                kind: Kind = "factor" if factor != 1 else "norm" if norm is not None else "none"
                yield _undone(kind, xx, xp, pp, step, factor * factors)._replace(factor=factor, norm=norm)

    def _plainest(self, fits: list[Scaling]) -> Scaling | None:
        """Return the plainest fit that leaves an ordinary error: without factors, unless those of a norm, or one for all, explain more."""
        ordinary = [fit for fit in fits if fit.ratio <= self._limit]
        without = next((fit for fit in ordinary if fit.kind == "none"), None)
        best = min(ordinary, key=lambda fit: fit.ratio / (_LESS if fit.kind == "factor" else 1), default=None)
        return without if without is not None and best is not None and best.ratio > _LESS * without.ratio else best

    def _factor_of(self, norm: int) -> tuple[float, int] | None:
        """Return the one factor of all matrices behind a norm, which is that of the norm, and one of them; they are then explained."""
        layer = {number: self._scalings[number] for number in self._layers[self._layer(norm)]}
        factors = [scaling.factor for scaling in layer.values() if scaling.norm == norm]
        middle = float(np.median(factors))
        behind = [
            number
            for number, scaling in layer.items()
            if scaling.kind == "factor" and scaling.norm in (norm, None) and abs(scaling.factor / middle - 1) <= _FACTOR
        ]
        if len(behind) < 2 or sum(layer[number].norm == norm for number in behind) < len(factors):
            return None
        for number in behind:
            self._scalings[number] = layer[number]._replace(kind="own")
        return middle, behind[0]

    def beside(self, number: int) -> float | None:
        """Return the factor of a matrix that is not quantized, besides those of a norm; None if it is not the source's by them."""
        columns = self._table.columns_of[self._sides].get(number)
        if columns is None:
            return None
        xx, xp, pp = columns[:3].astype(np.float64)
        for norm, factors in self._table.norms.of(self._sides, self._table.groups[number].base):
            both, square = float((factors * xp).sum()), float((factors * factors * pp).sum())
            if norm is not None and square and xx.sum() - both * both / square <= _ROUNDED * xx.sum():
                return 1.0 if norm in self.scaled else both / square
        return None

    def _is_behind_a_lost_norm(self, number: int) -> bool:
        """Return whether another matrix of the layer has the same factors, but no norm has: the norm is not the source's."""
        factors = self._column_factors(number)
        for norm, of_norm in self._table.norms.of(self._sides, self._table.groups[number].base):
            with np.errstate(all="ignore"):
                if norm is not None and _common(factors / of_norm) is not None:
                    return False
        others = [other for other in self._layers[self._layer(number)] if other != number and self._plain[other] is None]
        for other_factors in map(self._column_factors, others[:_COMPARED]):
            if factors.size == other_factors.size:
                with np.errstate(all="ignore"):
                    ratios = factors / other_factors
                if _common(ratios) is not None:
                    return True
        return False

    # Factors of its own

    def _by_own_columns(self, number: int) -> Scaling:
        """Return what factors of a tensor's own columns leave."""
        if number not in self._columns:
            return Scaling("own")
        columns = self._columns[number]
        xx, xp, pp, step, values = columns[:, (columns[2] > 0) & (columns[4] > 1)]
        if not step.any():
            return Scaling("own")
        factors = xp / pp
        left = (xx - factors * xp) * values / (values - 1)  # which the factors explain by chance
        return _undone("own", left + factors * xp, xp, pp, step, factors)

    def _column_factors(self, number: int) -> Floats:
        """Return (columns,) the factors of a tensor's columns, by least squares; NaN where unknown."""
        _, xp, pp, _, _ = self._columns.get(number, np.zeros((5, 0)))
        with np.errstate(all="ignore"):
            return np.where(pp > 0, xp / pp, np.nan)

    def _undone_by_another(self, number: int, own: Scaling) -> Scaling:
        """Return what the tensors before and behind one with own factors make of it.

        Where the factors of both are inverse up to one factor, the factors of the rows tell whose it is: methods choose factors of which
        the largest is the inverse of the least.
        """
        pairs = list(self._before_and_behind(number))
        products = [product for _, rows, columns in pairs if (product := self._product(rows, columns)) is not None]
        if not products:
            unknown = any(self._is_unknown(other) for other, _, _ in pairs) and self._is_usual(number)
            return own._replace(kind="unread") if unknown or self._is_behind_a_lost_norm(number) else Scaling("not")
        rows, columns, factor, middle = min(products, key=lambda product: abs(np.log(product.factor)))
        if abs(factor - 1) <= _FACTOR:
            return own if rows == number else self._by_rows_of(rows, number)
        of_rows = abs(middle + np.log(factor)) < abs(middle)
        pair = columns if rows == number else rows
        return own._replace(kind="factor", factor=factor, pair=pair) if of_rows == (rows == number) else own

    def _before_and_behind(self, number: int) -> Iterator[tuple[int, int, int]]:
        """Yield each matrix of the same module whose rows are a tensor's channels, or the other way round.

        With the numbers of the two whose rows, and whose columns, these are.
        """
        tensor = self._table.groups[number].base
        for other in self._modules.get(_module(tensor.name), ()):
            rows, columns = self._table.groups[other].base.shape
            if other != number and rows == tensor.shape[-1] and self._by_columns[number].ratio <= self._limit:
                yield other, other, number
            if other != number and columns == tensor.shape[0] and self._by_rows[number].ratio <= self._limit:
                yield other, number, other

    def _product(self, rows: int, columns: int) -> Product | None:
        """Return the one factor to which those of rows and of columns multiply, if they do."""
        if rows not in self._table.rows_of[self._sides] or columns not in self._columns:
            return None
        row_factors = self._row_factors(rows)
        factor = _common(row_factors * self._column_factors(columns))
        if factor is None:
            return None
        inverses = -np.log(row_factors[row_factors > 0])
        return Product(rows, columns, factor, float(inverses.max() + inverses.min()) / 2)

    def _row_factors(self, number: int) -> Floats:
        return self._table.rows_of[self._sides][number].astype(np.float64)

    def _by_rows_of(self, rows: int, number: int) -> Scaling:
        """Return what the factors of a tensor's columns leave, if these are the inverse of those of the rows of another.

        Those are known better: rows are not rounded by the scales of others.
        """
        columns, factors = self._columns[number], self._row_factors(rows)
        usable = (columns[2] > 0) & (factors > 0)
        xx, xp, pp, step, _ = columns[:, usable]
        return _undone("own", xx, xp, pp, step, 1 / factors[usable])

    def _is_unknown(self, number: int) -> bool:
        """Return whether no figures tell what factors a tensor has: it was not read whole, or is not the source's."""
        if number not in self._by_rows or not self._table.plan.exact:
            return True
        return self._plain[number] is None and min(self._by_rows[number].ratio, self._by_columns[number].ratio) > self._limit

    def _is_usual(self, number: int) -> bool:
        """Return whether at least half of the tensors like one have factors of their own."""
        alike = [self._plain[other] is None for other in self._numbers if self._kind(other) == self._kind(number)]
        return 2 * sum(alike) >= len(alike)

    # Channels that are lost

    def _lost(self, number: int) -> int:
        """Count the columns that do not resemble the source's, if all values were read."""
        matrix = self._table.groups[number].base
        if number not in self._columns or not self._table.plan.exact or matrix.elements < _FEW * matrix.shape[-1]:
            return 0
        xx, xp, pp, step, _ = self._columns[number]
        with np.errstate(all="ignore"):
            left = xx - np.where(pp > 0, xp * xp / pp, 0.0)
        return int(((xp * np.abs(xp) < _CORRELATED * xx * pp) & (left > _BEYOND * step)).sum())


def _undone(kind: Kind, xx: Floats, xp: Floats, pp: Floats, step: Floats, factors: Floats) -> Scaling:
    """Return what factors of columns leave, by the sums of columns. Rounding to nearest moves no value by more than its size."""
    error = xx - 2 * factors * xp + factors * factors * pp
    with np.errstate(all="ignore"):
        square = factors * factors
        undone, nearest = (np.where(square > 0, np.minimum(sums / square, pp), pp) for sums in (error, step))
    ratio = float(np.sqrt(max(0.0, error.sum()) / step.sum())) if undone.sum() < pp.sum() else np.inf  # else x is 0
    return Scaling(kind, ratio, max(0.0, float(undone.sum())), float(nearest.sum()), float(pp.sum()))


def _by_rows(sums: Floats) -> Scaling:
    """Return what factors of a tensor's own rows leave, besides those of a norm."""
    nearest = float(sums[SCALED_NEAREST])
    error, rounding, square = (float(sums[at]) for at in (UNDONE_ERROR, UNDONE_NEAREST, FITTED_SQUARE))
    ratio = float(np.sqrt(sums[SCALED_ERROR] / nearest)) if nearest > 0 and error < square else np.inf
    return Scaling("own", ratio, error, rounding, square, lost_rows=int(sums[ROWS_LOST]))


def _common(factors: Floats) -> float | None:
    """Return the factor that most are, if there are enough positive ones."""
    factors = factors[np.isfinite(factors) & (factors > 0)]
    if factors.size < _CHANNELS:
        return None
    middle = float(np.median(factors))
    return middle if float(np.median(np.abs(factors / middle - 1))) <= _AGREE else None


def _module(name: str) -> str:
    """Return the name of the module around a matrix's own."""
    return name.removesuffix(".weight").rpartition(".")[0]
