"""Detects models stacked from the layers of others, or mixed of their tensors: each is one parent's, whatever the fit of all says."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from analyzers.comparison.parents.least_squares import Weights
from analyzers.comparison.table import CASTS, Layer, Table

# Largest distance of a weight from 1, or from 0, in a layer that is one parent's.
_ONE_PARENTS = 0.05
# Fewest tensors that each of several parents must give alone to a mixture, and values that are not a constant.
_FEWEST = 2

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Stack:
    """A stack of layers. parents: layer -> the candidate's side; exact: whether every layer is equal bit for bit.

    tensors: number of the group -> the candidate's side, if single tensors rather than layers are from one candidate each.
    """

    parents: Mapping[Layer, int]
    exact: bool
    tensors: Mapping[int, int]

    @property
    def several(self) -> bool:
        """Return whether layers, or tensors, come from different candidates."""
        return len({parent for layer, parent in self.parents.items() if layer is not None}) > 1 or len(set(self.tensors.values())) > 1

    @property
    def sides(self) -> list[int]:
        """The candidates' sides."""
        return list(dict.fromkeys([*self.parents.values(), *self.tensors.values()]))


def _holders(table: Table, x: int, others: Sequence[int]) -> dict[int, set[int]]:
    """Return the candidates whose tensor equals that of ``x`` in every value read, after a cast, for each tensor."""
    read = np.max([table.tensors(x, p)["values"] for p in others], axis=0) > 0
    found = {number: set[int]() for number in np.flatnonzero(table.holders(x) & read).tolist()}
    for p in others:
        sums = table.tensors(x, p)
        equal = np.max([sums[name] for name in CASTS], axis=0) == sums["values"]
        for number in np.flatnonzero(equal & (sums["values"] > 0)).tolist():
            if number in found:
                found[number].add(p)
    return found


def exact_stack(table: Table, x: int, others: Sequence[int]) -> Stack | None:
    """Return the stack whose layers all equal those of a candidate in every tensor; None if some tensor equals no candidate's.

    If several candidates have a layer, the one with the most layers is named. If no layer-wise map exists, tensors are mapped one by one.
    """
    of_tensors = _holders(table, x, others)
    if not of_tensors or not all(of_tensors.values()):
        return None
    of_layers: dict[Layer, set[int]] = {}
    for number, holders in of_tensors.items():
        layer = table.groups[number].base.layer
        of_layers[layer] = of_layers.get(layer, set(others)) & holders
    if all(of_layers.values()):
        return Stack(_fewest(of_layers, others), exact=True, tensors={})
    tensors = _fewest(of_tensors, others)
    alone = [holders for holders in of_tensors.values() if len(holders) == 1]
    needed = [sum(holders == {side} for holders in alone) for side in set(tensors.values())]
    return Stack({}, exact=True, tensors=tensors) if min(needed) >= _FEWEST or len(needed) == 1 else None


def fitted_stack(layers: Mapping[Layer, Weights], chosen: Sequence[int]) -> Stack | None:
    """Return the stack in which each layer's fit has weight 1 for one candidate and 0 for the others; None if any layer is a mixture.

    chosen: the candidates' sides, in the order of the weights.
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
    return Stack(parents, exact=False, tensors={}) if parents else None


def _near(fit: Weights, position: int, value: float) -> bool:
    return abs(float(fit.estimate[position]) - value) <= _ONE_PARENTS


def _fewest(holders: Mapping[Key, set[int]], others: Sequence[int]) -> dict[Key, int]:
    """Choose one holder of each key, greedily using as few candidates as possible."""
    parents: dict[Key, int] = {}
    while len(parents) < len(holders):
        rest = {key: held for key, held in holders.items() if key not in parents}
        best = max(others, key=lambda i: (sum(i in held for held in rest.values()), -i))
        parents |= {key: best for key, held in rest.items() if best in held}
    return {key: parents[key] for key in holders}
