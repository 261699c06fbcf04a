"""What was counted of all spans, together: sums per layer and overall, and the kept values."""

from dataclasses import dataclass, field

import numpy as np

from analyzers.checkpoints import Alignment, Plan, Span
from analyzers.parents.count import GROUPS, PAIR_SUMS, Counted, is_matrix
from analyzers.parents.rounding import THROUGH, Floats, Ints

Layer = int | None


class Collector:
    """Collects the counts of spans, which may finish in any order."""

    def __init__(self, alignment: Alignment, plan: Plan, candidates: int) -> None:
        self._alignment, self._plan, self._candidates = alignment, plan, candidates
        self._counted: dict[Span, Counted] = {}

    def add(self, span: Span, counted: Counted) -> None:
        """Add one finished span."""
        self._counted[span] = counted

    def sums(self) -> "Sums":
        """All spans together, in an order that does not depend on threads."""
        empty, counts = np.zeros((self._candidates, PAIR_SUMS)), np.zeros((self._candidates, 1 + len(THROUGH)), np.int64)
        sums = Sums(empty.copy(), counts, counts.copy(), counts.copy())
        kept: dict[Layer, list[Floats]] = {}
        weights = [float(weight) for weight in self._plan.weights()]
        numbers = {group.base.name: number for number, group in enumerate(self._alignment.groups)}
        for span in sorted(self._counted, key=lambda span: (numbers[span.tensor.name], span.start)):
            counted, tensor, weight = self._counted[span], span.tensor, weights[self._plan.strata[span.tensor.name]]
            sums.pairs += weight * counted.pairs
            matrices = counted.pairs[:, [0, *range(PAIR_SUMS - len(THROUGH), PAIR_SUMS)]].astype(np.int64)
            sums.matrices += matrices
            sums.others += counted.others
            sums.broken += counted.broken
            tensor_sums = sums.tensors.setdefault(tensor.name, np.zeros((self._candidates, 2 + len(THROUGH)), np.int64))
            tensor_sums += np.column_stack((matrices + counted.others + counted.broken, counted.exact))
            moments = sums.moments.setdefault(tensor.name, empty.copy())
            moments += counted.pairs
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
    matrices, others, broken: (m, 1 + len(THROUGH)) values read, of matrices, of the rest, and of those that are not finite, and how many of
    them are equal as cast; rounding: see `Counted`. tensors: name of a group's base -> the same of all its values, then those equal as
    stored; moments: the same name -> (m, PAIR_SUMS) of its values in matrices. grams: layer -> (GROUPS, 1 + k, 1 + k); kept: layer ->
    (1 + k, n).
    """

    pairs: Floats
    matrices: Ints
    others: Ints
    broken: Ints
    rounding: float = 0.0
    tensors: dict[str, Ints] = field(default_factory=dict)
    moments: dict[str, Floats] = field(default_factory=dict)
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
        found = self.matrices[candidate] + self.others[candidate] + self.broken[candidate]
        return next((way for way, same in zip(THROUGH, found[1:], strict=True) if same == found[0] > 0), None)


def cosine(pairs: Floats) -> float | None:
    """X.P / |X||P| of a row of `PAIR_SUMS`."""
    norms = float(np.sqrt(pairs[2] * pairs[4]))
    return float(pairs[3]) / norms if norms > 0 else None


def distance(pairs: Floats) -> float | None:
    """|X - P| / |P| of a row of `PAIR_SUMS`."""
    return float(np.sqrt(max(0.0, pairs[2] - 2 * pairs[3] + pairs[4]) / pairs[4])) if pairs[4] > 0 else None


def matrix_parameters(alignment: Alignment, candidate: int) -> int:
    """Values of the model's matrices that the candidate has too."""
    return sum(
        side.elements
        for group in alignment.groups
        if (side := group.tuned[candidate]) is not None and is_matrix(group.base.shape, group.base.role)
    )
