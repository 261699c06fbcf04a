"""Fits X as a combination of its candidates: which of them it needs, their weights, and the share of values that these give exactly."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from analyzers.comparison.counting import Floats
from analyzers.comparison.parents.exact_values import EXACT, STEPS, Exactness, KeptValues, proves_more
from analyzers.comparison.parents.least_squares import Weights, condition, correlations, distinguishable, solve, squares, weights_of
from analyzers.comparison.parents.report import Fit, LayerFit, Parent
from analyzers.comparison.table import Layer, Table

# Smaller weights count as zero.
SMALLEST = 0.02
# A needed parent explains at least this share of the residual without it.
_EXPLAINS = 0.5
# Threshold if many values equal one candidate's: in sparse merges, the rescaled updates are noise to a linear fit.
_EXPLAINS_SPARSE = 0.05
_SPARSE = 0.2
# A fit is complete up to this residual, in units of the rounding error.
AT_ROUNDING = 1.3
# Cosine of differences from two parents below which X lies between them; and of a candidate and a parent that are of one family.
_AGAINST, _AKIN = -0.1, 0.9


class Fitted:
    """The fit of X by candidates (numbered as in the Gram matrices, from 0).

    chosen: candidates with separate weights; alike: the others that each represents; parents: those that the fit needs, a subset of
    ``chosen``; weights, layers: over ``chosen``, by exact values if possible, else by least squares; exact, layer_exact: over ``parents``.
    """

    def __init__(self, table: Table, subject: int, others: Sequence[int], dtype: str) -> None:
        sides = [subject, *others]
        grams = table.gram(sides)
        self._grams = {layer: of for layer, of in grams.items() if of[:, 0, 0].any()}
        self.kept = KeptValues(table, sides, list(self._grams), dtype)
        self._blocks = np.concatenate(list(self._grams.values()))
        self._layer_grams = np.stack([of.sum(axis=0) for of in self._grams.values()])
        self._layer_noise = np.array([self.kept.rounding(layer) for layer in self._grams]) * self._layer_grams[:, 0, 0]
        self._noise = float(self._layer_noise.sum())
        self._fit(0.0)
        if len(self.chosen) > 1 and not self._is_exact("share"):
            self._fit(self._noise)  # only exact bits can distinguish siblings whose differences are about as small as rounding

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
            self.weights = self._exactly(self.weights, self.exact, self.exact.common)
        for layer, exact in self.layer_exact.items():
            if exact.share >= EXACT:
                self.layers[layer] = self._exactly(self.layers[layer], exact, exact.share)

    @property
    def by_exact_values(self) -> bool:
        """Return whether values determine the weights: those of all layers, or of most where several candidates are combined."""
        return self._is_exact("common")

    def _is_exact(self, share: str) -> bool:
        layers = [getattr(each, share) for each in self.layer_exact.values()]
        most = len(self.parents) > 1 and bool(layers) and float(np.median(layers)) >= EXACT
        return self.exact is not None and (getattr(self.exact, share) >= EXACT or most)

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
        sparse = self.kept.equal(self.best) >= _SPARSE
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
        beyond = any(self.weights.estimate[self.chosen.index(i)] < 0 for i in self.parents)  # X lies beyond one of them
        if self.at_rounding or len(rows) < 2 or akin or beyond:
            return False
        apart = gram[0, 0] - gram[0, rows][:, None] - gram[0, rows][None] + gram[np.ix_(rows, rows)]
        sizes = np.sqrt(np.maximum(np.diagonal(apart), 1e-300))
        return bool((apart / np.outer(sizes, sizes)).min() > _AGAINST)

    @property
    def alone(self) -> float:
        """The largest share of kept values that equal a single candidate's."""
        return max(map(self.kept.equal, self.chosen), default=0.0)

    def _exactness(self, parents: Sequence[int]) -> tuple[Exactness | None, dict[Layer, Exactness]]:
        """Count the kept values that equal the combination of ``parents``, near the weights of least squares."""
        rows = [0, *(1 + i for i in parents)]
        starts = weights_of(self._layer_grams[:, rows][:, :, rows])
        usual = np.median(starts, axis=0)  # single layers that are not a combination of them do not matter
        return self.kept.exactness(parents, usual, dict(zip(self._grams, starts, strict=True)))

    def _exactly(self, fit: Weights, exact: Exactness, share: float) -> Weights:
        """Return ``fit`` at the weights of ``exact``, with intervals that contain these; unless all are exact, also half a step beyond."""
        weights = dict(zip(self.parents or [self.best], exact.weights, strict=True))
        estimate = np.array([weights.get(i, 0.0) for i in self.chosen])
        half = np.where(estimate == 0, 0.0, STEPS[-1] / 2 if share < 1 else 0.0)
        return replace(fit, estimate=estimate, low=np.minimum(fit.low, estimate - half), high=np.maximum(fit.high, estimate + half))


def fit_rows(fitted: Fitted, refs: Sequence[str], numbers: Mapping[Layer, Layer]) -> Fit:
    """Build the fit, with ``refs`` naming the candidates and ``numbers`` layers. Infinite intervals are limited to the range of JSON."""
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
            layer=numbers.get(layer, layer),
            values=fitted.kept.number(layer),
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
        layers=tuple(layers),
    )


def _finite(value: float) -> float:
    return float(np.clip(value, -1e300, 1e300))
