"""What was counted of all spans, together: sums per layer and overall, the kept values, and the fit from them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from analyzers.checkpoints import Alignment, PairedPlan, PairedSpan
from analyzers.parents.count import GROUPS, PAIR_SUMS, Counted, Ints, is_matrix
from analyzers.parents.fit import Weights, condition, correlations, distinguishable, solve, squares
from analyzers.parents.proof import GRID, best_weights, by_chance, equal
from analyzers.parents.rounding import THROUGH, Floats, rounded, rounds

# A weight below this is none.
SMALLEST = 0.02
# The least share of what is left without a parent that it must explain.
_EXPLAINS = 0.5
# Where many values still equal one candidate's, as in sparse merges, whose rescaled pieces are noise to a linear fit.
_EXPLAINS_SPARSE = 0.05
_SPARSE = 0.2
# The residual of a fit, in units of the rounding error, up to which nothing else is in the weights.
AT_ROUNDING = 1.3
# How many more values an exact combination of all must prove than the best candidate alone, where both are within rounding.
_PROVES = 0.05
# Below this angle between its parents (radians) a SLERP is a linear merge.
_LEAST_ANGLE = 0.05
# Values on which overall weights are tried.
_OVERALL = 1 << 16

Layer = int | None


class Collector:
    """Collects the counts of spans, which may finish in any order."""

    def __init__(self, alignment: Alignment, plan: PairedPlan, candidates: int) -> None:
        self._alignment, self._plan, self._candidates = alignment, plan, candidates
        self._counted: dict[PairedSpan, Counted] = {}

    def add(self, span: PairedSpan, counted: Counted) -> None:
        """Add one finished span."""
        self._counted[span] = counted

    def sums(self) -> "Sums":
        """All spans together, in an order that does not depend on threads."""
        empty, counts = np.zeros((self._candidates, PAIR_SUMS)), np.zeros((self._candidates, 1 + len(THROUGH)), np.int64)
        sums = Sums(empty.copy(), counts, counts.copy())
        kept: dict[Layer, list[Floats]] = {}
        for span in sorted(self._counted, key=lambda span: (span.group, span.start)):
            counted, tensor = self._counted[span], self._alignment.groups[span.group].base
            weight = float(self._plan.weights[int(self._plan.strata[span.group])])
            sums.pairs += weight * counted.pairs
            sums.matrices += counted.pairs[:, [0, *range(PAIR_SUMS - len(THROUGH), PAIR_SUMS)]].astype(np.int64)
            sums.others += counted.others
            sums.rounding += weight * counted.rounding
            if counted.pairs.any():
                cell = sums.cells.setdefault((tensor.layer, tensor.role), empty.copy())
                cell += weight * counted.pairs
            if counted.grams:
                grams = sums.grams.setdefault(tensor.layer, np.zeros((GROUPS, 1 + self._candidates, 1 + self._candidates)))
                for group, gram in counted.grams.items():
                    grams[group] += weight * gram
                kept.setdefault(tensor.layer, []).extend(counted.kept)
        sums.kept = {layer: np.concatenate(parts, axis=1) for layer, parts in kept.items() if parts}
        self._counted.clear()
        return sums


@dataclass
class Sums:
    """Sums over spans.

    pairs: (m, PAIR_SUMS), of the whole: each value read stands for as many as its stratum says; cells: the same of a layer and role.
    matrices, others: (m, 1 + len(THROUGH)) values read, of matrices and of the rest, and how many are equal as cast; rounding: see
    `Counted`.
    grams: layer -> (GROUPS, 1 + k, 1 + k); kept: layer -> (1 + k, n).
    """

    pairs: Floats
    matrices: Ints
    others: Ints
    rounding: float = 0.0
    cells: dict[tuple[Layer, str], Floats] = field(default_factory=dict)
    grams: dict[Layer, Floats] = field(default_factory=dict)
    kept: dict[Layer, Floats] = field(default_factory=dict)

    def related_layers(self, candidate: int, least: float) -> float:
        """The share of the layers, weighed equally, in which X and the candidate have a cosine of at least ``least``."""
        return float(np.mean([self._cosine(candidate, layer, 0) >= least for layer in {cell[0] for cell in self.cells}] or [False]))

    def unlike_roles(self, candidate: int, most: float) -> list[str]:
        """The roles whose matrices have a cosine of less than ``most``."""
        return [role for role in dict.fromkeys(cell[1] for cell in self.cells) if self._cosine(candidate, role, 1) < most]

    def _cosine(self, candidate: int, key: Layer | str, part: int) -> float:
        """Of the cells of a layer (``part`` 0) or a role (1)."""
        chosen = [pairs[candidate] for cell, pairs in self.cells.items() if cell[part] == key]
        return cosine(np.sum(chosen, axis=0)) or 0.0

    def cast(self, candidate: int) -> str | None:
        """The dtype through which all values read were cast from one to the other, "" if directly; None if some differ."""
        found = self.matrices[candidate] + self.others[candidate]
        return next((way for way, same in zip(THROUGH, found[1:], strict=True) if same == found[0] > 0), None)


def cosine(pairs: Floats) -> float | None:
    """X.P / |X||P| of a row of `PAIR_SUMS`."""
    norms = float(np.sqrt(pairs[2] * pairs[4]))
    return float(pairs[3]) / norms if norms > 0 else None


def distance(pairs: Floats) -> float | None:
    """|X - P| / |P| of a row of `PAIR_SUMS`."""
    return float(np.sqrt(max(0.0, pairs[2] - 2 * pairs[3] + pairs[4]) / pairs[4])) if pairs[4] > 0 else None


@dataclass(frozen=True, slots=True)
class Exactness:
    """Values of X that equal the combination at ``weights``, of ``values`` tested.

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

    chosen: those with weights of their own; alike: which others each stands for; parents: those that the fit needs, a subset of ``chosen``;
    weights, layers: over ``chosen``; exact, layer_exact: over ``parents``.
    """

    def __init__(self, sums: Sums, dtype: str | None) -> None:
        self._sums, self._dtype = sums, dtype
        self._blocks = np.concatenate(list(sums.grams.values()))
        self.by_layer = {layer: grams.sum(axis=0) for layer, grams in sums.grams.items()}
        self.chosen, self.alike = distinguishable(self._blocks)
        rows = [0, *(1 + i for i in self.chosen)]
        present = [0, *sorted(1 + i for first, others in self.alike.items() for i in (first, *others))]
        self.condition = condition(self._blocks.sum(axis=0)[np.ix_(present, present)])
        self.weights = solve(self._blocks[:, rows][:, :, rows])
        self.layers: dict[Layer, Weights] = {layer: solve(grams[:, rows][:, :, rows]) for layer, grams in sums.grams.items()}
        self._layer_grams = np.stack(list(self.by_layer.values()))
        self.rounding = float(np.sqrt(sums.rounding / self.weights.total)) if self.weights.total > 0 else 0.0
        self.parents = self._parents()
        self.exact, self.layer_exact = self._exactness(self.parents or [self.best])

    @property
    def best(self) -> int:
        """The one candidate that explains most of X, each layer for itself."""
        return min(self.chosen, key=lambda i: squares(self._layer_grams, [i]))

    @property
    def at_rounding(self) -> bool:
        """Whether nothing but rounding is left of X: most values are exact, or the layers, fitted separately, leave no more."""
        proven = self.exact is not None and self.exact.share > 0.5
        return proven or squares(self._layer_grams, self.chosen) <= AT_ROUNDING**2 * self._sums.rounding

    @property
    def spherical(self) -> float | None:
        """t of the SLERP of two parents, a_1 = sin((1 - t) theta) / sin theta and a_2 = sin(t theta) / sin theta, that agrees with the
        weights.

        None where none does, or where it cannot be told from a linear merge because the weights add up to 1.
        """
        if len(self.parents) != 2:
            return None
        gram = self._blocks.sum(axis=0)
        first, second = self.parents
        theta = float(np.arccos(np.clip(correlations(gram)[first, second], -1, 1)))
        a, b = (float(self.weights.estimate[self.chosen.index(i)]) for i in self.parents)
        if theta < _LEAST_ANGLE or min(a, b) <= 0 or abs(a + b - 1) < SMALLEST:
            return None
        t = float(np.arctan2(b * np.sin(theta), a + b * np.cos(theta))) / theta
        return t if abs(a - np.sin((1 - t) * theta) / np.sin(theta)) < SMALLEST else None

    def _parents(self) -> list[int]:
        """The candidates without which much of X stays unexplained and whose weight is away from 0 beyond its interval, somewhere."""
        alone = squares(self._layer_grams, [])
        left = squares(self._layer_grams, self.chosen)
        needed, significant = [], []
        sparse = self._equal(self.best) >= _SPARSE
        for position, i in enumerate(self.chosen):
            fits = (self.weights, *self.layers.values())
            if not any(abs(fit.estimate[position]) > max(SMALLEST, fit.margin[position]) for fit in fits):
                continue
            significant.append(i)
            without = squares(self._layer_grams, [j for j in self.chosen if j != i])
            explains = 1 - left / without if without > 1e-9 * alone else 0.0
            if explains >= (_EXPLAINS_SPARSE if sparse else _EXPLAINS):
                needed.append(i)
        if len(significant) > 1 and left <= AT_ROUNDING**2 * self._sums.rounding:  # differences as small as rounding: only bits decide
            several = needed if len(needed) > 1 else significant
            together, single = self._exactness(several)[0], self._exactness([self.best])[0]
            if together is not None and single is not None:
                return several if together.share > single.share + _PROVES else [self.best]
        return needed

    def _equal(self, i: int) -> float:
        """The share of kept values that are candidate ``i``'s."""
        kept = self._sums.kept.values()
        same, values = sum(int((each[0] == each[1 + i]).sum()) for each in kept), sum(int(each.shape[1]) for each in kept)
        return same / max(1, values)

    def _exactness(self, parents: Sequence[int]) -> tuple[Exactness | None, dict[Layer, Exactness]]:
        """How many kept values equal the combination of ``parents``, overall and with the weights of each layer."""
        dtype = self._dtype
        if dtype is None or not rounds(dtype):
            return None, {}
        rows = [0, *(1 + i for i in parents)]
        kept = {layer: values[rows] for layer, values in self._sums.kept.items() if values.shape[1]}
        total = sum(values.shape[1] for values in kept.values())
        if not total:
            return None, {}
        step = max(1, total // _OVERALL)
        some = np.concatenate([values[:, ::step] for values in kept.values()], axis=1)
        fit = solve(self._blocks[:, rows][:, :, rows])
        weights, stored = best_weights(some, fit.estimate - fit.margin, fit.estimate, fit.estimate + fit.margin, dtype)
        chance = by_chance(some[0], rounded(np.array(weights) @ some[1:], dtype))
        same, layers = 0, {}
        for layer, values in kept.items():
            own = solve(self._sums.grams[layer][:, rows][:, :, rows])
            of_layer, way = best_weights(values, own.estimate - own.margin, own.estimate, own.estimate + own.margin, dtype)
            shares = [float(_equal(values, each, dtype, way)) for each, way in ((weights, stored), (of_layer, way))]
            same += round(shares[0] * values.shape[1])
            better = shares[1] > shares[0]
            layers[layer] = Exactness(max(shares), chance, values.shape[1], of_layer if better else weights, way if better else stored)
        together = sum(each.share * each.values for each in layers.values()) / total
        if together > same / total + GRID:  # merges may weigh each layer differently
            stored = sum(each.values for each in layers.values() if each.stored) > total / 2
            return Exactness(together, chance, total, weights, stored, per_layer=True), layers
        return Exactness(same / total, chance, total, weights, stored), layers


_PIECE = 1 << 18  # values tested at once, in float64


def _equal(values: Floats, weights: Sequence[float], dtype: str, stored: bool) -> float:
    same = 0
    for start in range(0, values.shape[1], _PIECE):
        piece = values[:, start : start + _PIECE].astype(np.float64)
        same += int(equal(piece[0], piece[1:], weights, dtype, stored).sum())
    return same / max(1, int(values.shape[1]))


def matrix_parameters(alignment: Alignment, candidate: int) -> int:
    """Values of the model's matrices that the candidate has too."""
    return sum(
        side.elements
        for group in alignment.groups
        if (side := group.tuned[candidate]) is not None and is_matrix(group.base.shape, group.base.role)
    )
