"""Fits X as a combination of its candidates: which of them it needs, their weights, and the share of values that these give exactly."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from analyzers.comparison.counting import Values
from analyzers.comparison.parents.least_squares import Weights, condition, correlations, distinguishable, solve, squares
from analyzers.comparison.parents.report import ABOVE_CHANCE, PROVEN, Fit, LayerFit, Parent
from analyzers.comparison.parents.rounding import FORMATS, Floats, is_combination, narrowest, rounded, rounding_error
from analyzers.comparison.table import Layer, Table

# Smaller weights count as zero.
SMALLEST = 0.02
# If at least this share of the values is exact, the exact values determine the weights.
EXACT = 0.99
# A needed parent explains at least this share of the residual without it.
_EXPLAINS = 0.5
# Threshold if many values equal one candidate's: in sparse merges, the rescaled updates are noise to a linear fit.
_EXPLAINS_SPARSE = 0.05
_SPARSE = 0.2
# A fit is complete up to this residual, in units of the rounding error.
AT_ROUNDING = 1.3
# Additional share of values that an exact combination of several parents must prove compared with the best candidate alone, if both are
# within rounding; or the largest fraction of the candidate's unexplained values that it may leave unexplained.
_PROVES, _LEAVES = 0.05, 0.1
# Additional share of values that per-layer weights must prove compared with common weights.
_BETTER = 0.01
# Cosine of differences from two parents below which X lies between them; and of a candidate and a parent that are of one family.
_AGAINST, _AKIN = -0.1, 0.9
# Number of values on which weights are tried: over all layers, and in one layer; steps in which weights are tried.
_OVERALL, _OF_LAYER, _GRID, _STEPS = 1 << 14, 1 << 12, 0.01, (0.05, 0.01, 0.001)
_PIECE = 1 << 18  # values tested at a time, in float64


@dataclass(frozen=True, slots=True)
class Exactness:
    """The share of X's ``values`` tested that equal the combination at ``weights``.

    stored: in the arithmetic of X's dtype; per_layer: at the weights of each layer.
    """

    share: float
    by_chance: float
    values: int
    weights: tuple[float, ...]
    stored: bool
    per_layer: bool = False


class Fitted:
    """The fit of X by candidates (numbered as in the Gram matrices, from 0).

    chosen: candidates with separate weights; alike: the others that each represents; parents: those that the fit needs, a subset of
    ``chosen``; weights, layers: over ``chosen``, by exact values if possible, else by least squares; exact, layer_exact: over ``parents``.
    """

    def __init__(self, table: Table, subject: int, others: Sequence[int], dtype: str) -> None:
        sides = [subject, *others]
        grams = table.gram(sides)
        self._grams = {layer: of for layer, of in grams.items() if of[:, 0, 0].any()}
        self._kept = {layer: kept for layer in self._grams if (kept := table.of_layer(layer, sides)).size}
        self._dtype = narrowest([_some(kept)[0] for kept in self._kept.values()], dtype) if dtype in FORMATS else None
        self._blocks = np.concatenate(list(self._grams.values()))
        self._layer_grams = np.stack([of.sum(axis=0) for of in self._grams.values()])
        self._layer_noise = np.array([self._rounding(layer, dtype) for layer in self._grams])
        self._noise = float(self._layer_noise.sum())
        self._fit(0.0)
        if len(self.chosen) > 1 and not self.by_exact_values and not self.exact_per_layer:
            self._fit(self._noise)  # only exact bits can distinguish siblings whose differences are about as small as rounding

    def _rounding(self, layer: Layer, dtype: str) -> float:
        """Estimate the sum of the squared errors that rounding a layer of X to its dtype makes, from the values that were kept."""
        if layer not in self._kept:
            return 0.0
        x = self._kept[layer][0].astype(np.float64)
        square = float(x @ x)
        return rounding_error(x, dtype) / square * float(self._grams[layer][:, 0, 0].sum()) if square > 0 else 0.0

    def _squares_left(self, chosen: Sequence[int]) -> Floats:
        """Return the squared residual of each layer, fitted by only the ``chosen`` candidates."""
        return squares(self._layer_grams, chosen)

    def _fit(self, noise: float) -> None:
        """Choose parents and their weights; noise: see `solve`."""
        self.chosen, self.alike = distinguishable(self._blocks, noise)
        rows = [0, *(1 + i for i in self.chosen)]
        present = [0, *sorted(1 + i for first, others in self.alike.items() for i in (first, *others))]
        self.condition = condition(self._blocks.sum(axis=0)[np.ix_(present, present)])
        self.weights = solve(self._blocks[:, rows][:, :, rows], noise)
        share = noise / max(float(self._blocks[:, 0, 0].sum()), 1e-300)
        self.layers: dict[Layer, Weights] = {
            layer: solve(grams[:, rows][:, :, rows], share * float(grams[:, 0, 0].sum())) for layer, grams in self._grams.items()
        }
        self.rounding = float(np.sqrt(self._noise / self.weights.total)) if self.weights.total > 0 else 0.0
        self.parents = self._parents()
        self.exact, self.layer_exact = self._exactness(self.parents or [self.best])
        if self.exact is not None and self.by_exact_values:
            self.weights = self._exactly(self.weights, self.exact, self._proven())
        for layer, exact in self.layer_exact.items():
            if exact.share >= EXACT:
                self.layers[layer] = self._exactly(self.layers[layer], exact, exact.share)

    @property
    def exceptions(self) -> list[Layer]:
        """Layers that deviate from the combination if most layers are exactly the combination: trained afterwards, or replaced."""
        others = [layer for layer, exact in self.layer_exact.items() if exact.share < EXACT]
        return others if len(self.parents) > 1 and 2 * len(others) < len(self.layer_exact) else []

    @property
    def by_exact_values(self) -> bool:
        """Return whether the values of all layers except `exceptions` determine the weights."""
        return self.exact is not None and not self.exact.per_layer and self._proven() >= EXACT

    @property
    def exact_per_layer(self) -> bool:
        """Return whether the values of all layers except `exceptions` determine the weights of each layer."""
        return self.exact is not None and self.exact.per_layer and self._proven() >= EXACT

    def _proven(self) -> float:
        """Return the share of exact values, without those of `exceptions`."""
        but = self.exceptions
        counted = [exact for layer, exact in self.layer_exact.items() if layer not in but]
        return sum(exact.share * exact.values for exact in counted) / max(1, sum(exact.values for exact in counted))

    @property
    def best(self) -> int:
        """The candidate that alone explains most of X, fitted per layer."""
        return min(self.chosen, key=lambda i: self._squares_left([i]).sum())

    @property
    def at_rounding(self) -> bool:
        """Return whether X is explained up to rounding: most values are exact, or separate fits of the layers leave no larger residual."""
        proven = self.exact is not None and self.exact.share > 0.5
        return proven or bool(self._squares_left(self.chosen).sum() <= AT_ROUNDING**2 * self._noise)

    def _parents(self) -> list[int]:
        """Return the candidates that explain much of X, overall or in most layers.

        In some fit their weight must differ from 0 by more than its interval.
        """
        alone = self._squares_left([])
        left = self._squares_left(self.chosen)
        needed = []
        sparse = self._equal(self.best) >= _SPARSE
        for position, i in enumerate(self.chosen):
            fits = (self.weights, *self.layers.values())
            if not any(abs(fit.estimate[position]) > max(SMALLEST, fit.high[position] - fit.estimate[position]) for fit in fits):
                continue
            without = self._squares_left([j for j in self.chosen if j != i])
            of_layers = np.append(1 - left / np.maximum(without, 1e-300), 1 - left.sum() / max(without.sum(), 1e-300))
            some = np.append(without > 1e-9 * alone, without.sum() > 1e-9 * alone.sum())
            explains = (of_layers >= (_EXPLAINS_SPARSE if sparse else _EXPLAINS)) & some
            if explains[-1] or explains[:-1].mean() > 0.5:
                needed.append(i)
        at_rounding = left <= AT_ROUNDING**2 * self._layer_noise
        if len(self.chosen) > 1 and at_rounding.mean() > 0.5:  # differences as small as rounding: only bits decide
            several = needed if len(needed) > 1 else self.chosen
            (together, layers), single = self._exactness(several), self._exactness([self.best])[0]
            if together is not None and single is not None:
                proven = proves_more(together.share, single.share)
                largest = np.abs([each.weights for each in layers.values()]).max(axis=0)
                several = [i for i, weight in zip(several, largest, strict=True) if weight > SMALLEST]
                return several if proven and len(several) > 1 else [self.best]
        return needed

    @property
    def is_start(self) -> bool:
        """Return whether X lies where several parents began, rather than between them: away from all of them in about one direction.

        Differences of a merge from its parents point against each other; those of a base from its fine-tunes are about orthogonal. So can
        be those of a sparse merge, which has its base among the candidates.
        """
        gram, rows = self._blocks.sum(axis=0), [1 + i for i in self.parents]
        cosines = correlations(gram)
        akin = [i for i in self.chosen if i not in self.parents and rows and cosines[i, self.parents[0]] > _AKIN]
        if self.at_rounding or len(rows) < 2 or akin:
            return False
        apart = gram[0, 0] - gram[0, rows][:, None] - gram[0, rows][None] + gram[np.ix_(rows, rows)]
        sizes = np.sqrt(np.maximum(np.diagonal(apart), 1e-300))
        return bool((apart / np.outer(sizes, sizes)).min() > _AGAINST)

    @property
    def alone(self) -> float:
        """The largest share of kept values that equal a single candidate's."""
        return max(map(self._equal, self.chosen), default=0.0)

    def values(self, layer: Layer) -> int:
        """Return the number of values of a layer that were kept."""
        return int(self._kept[layer].shape[1]) if layer in self._kept else 0

    def _equal(self, i: int) -> float:
        """Return the share of kept values that equal candidate ``i``'s."""
        same = sum(int((values[0] == values[1 + i]).sum()) for values in self._kept.values())
        return same / max(1, sum(int(values.shape[1]) for values in self._kept.values()))

    def _exactness(self, parents: Sequence[int]) -> tuple[Exactness | None, dict[Layer, Exactness]]:
        """Count the kept values that equal the combination of ``parents``, with common weights and with the weights of each layer."""
        dtype = self._dtype
        if dtype is None or not self._kept:
            return None, {}
        rows = [0, *(1 + i for i in parents)]
        some = np.concatenate([_some(values[rows], max(1, _OVERALL // len(self._kept))) for values in self._kept.values()], axis=1)
        weights, stored = exact_weights(some, solve(self._blocks[:, rows][:, :, rows]).estimate, dtype)
        chance = by_chance(some[0], rounded(weights @ some[1:], dtype))
        whole = tuple(map(float, weights))
        shared, layers = 0.0, dict[Layer, Exactness]()
        for layer, kept in self._kept.items():
            values = kept[rows]
            exact = Exactness(_share(values, weights, dtype, stored), chance, values.shape[1], whole, stored)
            shared += exact.share * exact.values
            if exact.share < EXACT:  # merges may have different weights in each layer
                start = solve(self._grams[layer][:, rows][:, :, rows]).estimate
                own, own_stored = exact_weights(_some(values), start, dtype)
                share = _share(values, own, dtype, own_stored)
                if share > exact.share:
                    exact = replace(exact, share=share, weights=tuple(map(float, own)), stored=own_stored)
            held = values[1:].any(axis=1)  # a candidate without this layer has no weight in it
            layers[layer] = replace(exact, weights=tuple((np.array(exact.weights) * held).tolist()))
        total = sum(each.values for each in layers.values())
        together = sum(each.share * each.values for each in layers.values())
        if together > shared + _BETTER * total:
            stored = sum(each.values for each in layers.values() if each.stored) > total / 2
            return Exactness(together / total, chance, total, whole, stored, per_layer=True), layers
        return Exactness(shared / total, chance, total, whole, stored), layers

    def _exactly(self, fit: Weights, exact: Exactness, share: float) -> Weights:
        """Return ``fit`` at the weights of ``exact``, with intervals that contain these; unless all are exact, also half a step beyond."""
        weights = dict(zip(self.parents or [self.best], exact.weights, strict=True))
        estimate = np.array([weights.get(i, 0.0) for i in self.chosen])
        half = np.where(estimate == 0, 0.0, _STEPS[-1] / 2 if share < 1 else 0.0)
        return replace(fit, estimate=estimate, low=np.minimum(fit.low, estimate - half), high=np.maximum(fit.high, estimate + half))


def proves(fit: Fit, parents: int) -> bool:
    """Return whether exact values prove the combination of this many parents, by more than chance and a single candidate explain."""
    exact = fit.exact_share or 0.0
    beyond_chance = exact > max(PROVEN, ABOVE_CHANCE * (fit.exact_by_chance or 0.0))
    return beyond_chance and (parents < 2 or proves_more(exact, fit.exact_alone or 0.0))


def proves_more(together: float, alone: float) -> bool:
    """Return whether an exact combination of several parents explains many more values than a single candidate does."""
    return together > alone + _PROVES or 1 - together < _LEAVES * (1 - alone)


def exact_weights(some: Floats, start: Floats, dtype: str) -> tuple[Floats, bool]:
    """Find the weights near ``start``, and the arithmetic (`is_combination`), for which most of ``some[0]`` equals the combination.

    Tries ``start``, and from its nearest multiples of `_GRID` on whatever neighbours explain more values: least squares takes rounding for
    noise that is independent of the parents, but between siblings that differ by an ulp or two it is not, and the weights come out wrong by
    0.02 and more.
    """

    def explained(weights: Floats, stored: bool) -> float:
        return float(is_combination(some[0], some[1:], weights, dtype, stored).mean())

    found = []
    for stored in (False, True) if len(start) > 1 and dtype in ("BF16", "F16") else (False,):
        best = np.round(start / _GRID) * _GRID
        share = explained(best, stored)
        for step in _STEPS:
            while share < 1:
                most, nearest = max(((explained(each, stored), each) for each in _neighbours(best, step)), key=lambda each: each[0])
                if most <= share:
                    break
                share, best = most, nearest
        found += [(share, best, stored), (explained(start, stored), start, stored)]
        if stored:  # some programs round the weights too
            narrow = rounded(best, dtype)
            found.append((explained(narrow, True), narrow, True))
    _, weights, stored = max(found, key=lambda each: each[0])  # multiples of the grid win ties
    return weights, stored


def _neighbours(weights: Floats, size: float) -> Iterator[Floats]:
    """Yield the weights one step of this size away: each alone, and each two in opposite directions."""
    steps = np.eye(len(weights)) * size
    for step, sign in product(steps, (1, -1)):
        yield np.round(weights + sign * step, 3)
    for one, other in product(steps, steps):
        if one is not other and (one != other).any():
            yield np.round(weights + one - other, 3)


def by_chance(x: Floats, y: Floats) -> float:
    """Return the share of equal values expected between unrelated ``x`` and ``y``: the sum of p_k q_k over values."""
    (a, n), (b, m) = (np.unique(each, return_counts=True) for each in (x, y))
    _, i, j = np.intersect1d(a, b, assume_unique=True, return_indices=True)
    return float(n[i].astype(np.float64) @ m[j].astype(np.float64)) / max(1, x.size * y.size)


def _some(values: Values, most: int = _OF_LAYER) -> Floats:
    """Return about ``most`` columns at most, in float64."""
    return values[:, :: max(1, values.shape[1] // most)].astype(np.float64)


def _share(values: Values, weights: Floats, dtype: str, stored: bool) -> float:
    same = 0
    for start in range(0, values.shape[1], _PIECE):
        piece = values[:, start : start + _PIECE].astype(np.float64)
        same += int(is_combination(piece[0], piece[1:], weights, dtype, stored).sum())
    return same / max(1, int(values.shape[1]))


def fit_rows(fitted: Fitted, refs: Sequence[str]) -> Fit:
    """Build the fit, with ``refs`` naming the candidates. Infinite intervals are limited to the range of JSON."""
    rows = [
        Parent(
            ref=refs[i],
            weight=float(fitted.weights.estimate[position]),
            low=_finite(fitted.weights.low[position]),
            high=_finite(fitted.weights.high[position]),
            alike=tuple(refs[other] for other in fitted.alike[i]),
        )
        for position, i in enumerate(fitted.chosen)
    ]
    exact = fitted.exact
    layers = [
        LayerFit(
            layer=layer,
            values=fitted.values(layer),
            weights=tuple(map(float, fit.estimate)),
            low=tuple(map(_finite, fit.low)),
            high=tuple(map(_finite, fit.high)),
            residual=fit.residual,
            exact_share=found.share if (found := fitted.layer_exact.get(layer)) is not None else None,
        )
        for layer, fit in sorted(fitted.layers.items(), key=lambda each: (each[0] is not None, each[0] or 0))
    ]
    return Fit(
        parents=tuple(rows),
        weights_by="exact-values" if fitted.by_exact_values else "least-squares",
        residual=fitted.weights.residual,
        rounding=fitted.rounding or None,
        condition=fitted.condition,
        exact_share=exact.share if exact else None,
        exact_by_chance=exact.by_chance if exact else None,
        exact_values=exact.values if exact else 0,
        exact_alone=fitted.alone if exact else None,
        exact_per_layer=exact is not None and exact.per_layer,
        exceptions=tuple(fitted.exceptions),
        layers=tuple(layers),
    )


def _finite(value: float) -> float:
    return float(np.clip(value, -1e300, 1e300))
