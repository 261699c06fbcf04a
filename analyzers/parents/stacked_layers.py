"""Detects models stacked from the layers of others: each layer is one parent's, whatever the fit of all layers together says."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from analyzers.checkpoints import Alignment
from analyzers.parents.collect import Layer
from analyzers.parents.least_squares import Weights
from analyzers.parents.rounding import Ints

# Largest distance of a weight from 1, or from 0, in a layer that is one parent's.
_ONE_PARENTS = 0.05


@dataclass(frozen=True, slots=True)
class Stack:
    """A stack of layers. parents: layer -> the candidate (column) that it comes from; exact: whether every layer is equal bit for bit."""

    parents: Mapping[Layer, int]
    exact: bool

    @property
    def several(self) -> bool:
        """Return whether layers come from different candidates."""
        return len({parent for layer, parent in self.parents.items() if layer is not None}) > 1


def exact_stack(alignment: Alignment, tensors: Mapping[str, Ints], candidates: int) -> Stack | None:
    """Return the stack whose layers all equal those of a candidate in every tensor; None if some layer equals no candidate's.

    tensors: see `Sums.tensors`. If several candidates have a layer, the one with the most layers is named.
    """
    holders: dict[Layer, set[int]] = {}
    for group in alignment.groups:
        counts = tensors.get(group.base.name)
        if counts is None:
            continue
        layer = group.base.layer
        equal = {i for i in range(candidates) if counts[i, 0] and max(counts[i, 1:]) == counts[i, 0]}
        holders[layer] = holders.get(layer, set(range(candidates))) & equal
    if not holders or not all(holders.values()):
        return None
    return Stack(_fewest(holders, candidates), exact=True)


def fitted_stack(layers: Mapping[Layer, Weights], chosen: Sequence[int]) -> Stack | None:
    """Return the stack in which each layer's fit has weight 1 for one candidate and 0 for the others; None if any layer is a mixture.

    chosen: the candidates of the weights, in their order.
    """
    parents: dict[Layer, int] = {}
    for layer, fit in layers.items():
        ones = [position for position in range(len(chosen)) if _near(fit, position, 1.0)]
        zeros = [position for position in range(len(chosen)) if _near(fit, position, 0.0)]
        if len(ones) != 1 or len(zeros) != len(chosen) - 1:
            if layer is None:
                continue
            return None
        parents[layer] = chosen[ones[0]]
    return Stack(parents, exact=False) if parents else None


def _near(fit: Weights, position: int, value: float) -> bool:
    return abs(float(fit.estimate[position]) - value) <= _ONE_PARENTS


def _fewest(holders: Mapping[Layer, set[int]], candidates: int) -> dict[Layer, int]:
    """Choose one holder of each layer, greedily using as few candidates as possible."""
    parents: dict[Layer, int] = {}
    while len(parents) < len(holders):
        rest = {layer: held for layer, held in holders.items() if layer not in parents}
        best = max(range(candidates), key=lambda i: (sum(i in held for held in rest.values()), -i))
        parents |= {layer: best for layer, held in rest.items() if best in held}
    return parents
