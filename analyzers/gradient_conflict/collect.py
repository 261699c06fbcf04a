"""What one backward pass brings, layer by layer, taken in by every analysis at once and then forgotten.

Axes: n units of a chunk, S samples.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from analyzers.gradient_conflict.batches import BatchSums, partitions
from analyzers.gradient_conflict.cost import Cost, Route
from analyzers.gradient_conflict.deciles import Deciles
from analyzers.gradient_conflict.grams import Group, Plan, groups, neuron_grams, plan
from analyzers.gradient_conflict.jackknife import FloatArray
from analyzers.gradient_conflict.pairs import Pairs, PairSums, Thresholds
from analyzers.gradient_conflict.weights import WeightSums
from analyzers.language_models.layer_capture import LayerCapture

ALL = "all"


@dataclass(frozen=True, slots=True)
class Settings:
    """floor: in medians of a layer's norms. order: of the samples, by which halves and batches are drawn with ``seed``.

    weights: whether to look at each weight. chunk_bytes, route: as of `grams.plan`.
    """

    thresholds: Thresholds
    order: tuple[int, ...]
    floor: float = 0.0
    seed: int = 0
    weights: bool = True
    chunk_bytes: int = 32 << 20
    route: Literal["auto"] | Route = "auto"


@dataclass(slots=True)
class UnitSums:
    """How the norms of one unit are spread over the samples, summed over units that have any gradient (``live``).

    leading: (S,), units in which the sample has the largest norm (the first of several equal ones).
    """

    live: int
    dead: int
    top_share: float
    effective: float
    leading: FloatArray

    @classmethod
    def none(cls, samples: int) -> "UnitSums":
        """Of no units."""
        return cls(0, 0, 0.0, 0.0, np.zeros(samples))

    def add(self, pairs: Pairs) -> None:
        """Take in a chunk."""
        squares = torch.where(pairs.counted, pairs.squares, 0).double()
        total = squares.sum(1)
        live = squares[total > 0]
        shares = live / live.sum(1, keepdim=True)
        self.live += len(live)
        self.dead += len(squares) - len(live)
        if len(live):
            top, sample = shares.max(1)
            self.top_share += float(top.sum())
            self.effective += float((1 / shares.square().sum(1)).sum())
            self.leading += torch.bincount(sample, minlength=live.shape[1]).cpu().numpy()

    def merge(self, other: "UnitSums") -> None:
        """Take in other units."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True)
class LayerSums:
    """One layer. sums: by block, and of all blocks together under `ALL`."""

    layer: int
    neurons: int
    units: UnitSums
    weights: WeightSums
    sums: dict[str, PairSums] = field(default_factory=dict)


class Collector:
    """Takes in captures, the layers in any order, the captures of a layer one after the other."""

    def __init__(self, samples: int, settings: Settings) -> None:
        self.layers: list[LayerSums] = []
        self.cost = Cost()
        self.routes: dict[Route, int] = {"direct": 0, "tokens": 0}
        self.batches = BatchSums(partitions(settings.order, settings.seed), settings.thresholds.gamma)
        self.deciles: Deciles | None = None
        self._held: list[LayerCapture] = []
        self._samples = samples
        self._settings = settings

    def add(self, capture: LayerCapture) -> None:
        """Take in one FFN, expert or attention; at last, `finish`. Raises InvalidCheckpoint if its gradients are not finite."""
        if not self.layers or self.layers[-1].layer != capture.layer:
            self.finish()
            self.layers.append(LayerSums(capture.layer, 0, UnitSums.none(self._samples), WeightSums()))
        if self._settings.floor:  # it depends on all of the layer
            self._held.append(capture)
        else:
            self._add(capture, {})

    def finish(self) -> None:
        """Take in what was held back of the last layer."""
        floors = self._floors(self._held)
        for capture in self._held:
            self._add(capture, floors)
        self._held.clear()

    def _add(self, capture: LayerCapture, floors: Mapping[str, float]) -> None:
        if capture.activity is not None and self._samples >= 4:
            self.deciles = self.deciles or Deciles(self._settings.order, self._settings.thresholds.gamma)
            self.deciles.begin(capture.activity, capture.tokens)
        for group in groups(capture, self._samples):
            self._add_group(group, self.layers[-1], floors)

    def _plan(self, group: Group) -> Plan:
        return plan(group, self._settings.chunk_bytes, "direct" if self._settings.weights else self._settings.route)

    def _add_group(self, group: Group, layer: LayerSums, floors: Mapping[str, float]) -> None:
        exponent = group.scaling.exponent
        weigh = layer.weights if self._settings.weights else None
        floors = {name: floor * 2.0**exponent for name, floor in floors.items()}
        planned = self._plan(group)
        self.cost += planned.cost
        self.routes[planned.route] += len(group.blocks)
        gradients = None if weigh is None else lambda _, each: weigh.add(each, exponent)
        for units, grams in neuron_grams(group, planned=planned, gradients=gradients):
            for name, gram in grams.items():
                self._take(layer, name, Pairs(gram, floors.get(name, 0.0)), floors.get(name, 0.0), exponent)
            together = Pairs(_total(grams), floors.get(ALL, 0.0))
            self._take(layer, ALL, together, floors.get(ALL, 0.0), exponent)
            layer.units.add(Pairs(together.gram) if floors else together)
            self.batches.add(together.gram)
            if self.deciles is not None:
                self.deciles.add(units, together)
        layer.neurons += group.units

    def _take(self, layer: LayerSums, name: str, pairs: Pairs, floor: float, exponent: int) -> None:
        sums = PairSums.of(pairs, self._settings.thresholds, floor, exponent)
        layer.sums[name] = layer.sums[name] + sums if name in layer.sums else sums

    def _floors(self, captures: Sequence[LayerCapture]) -> dict[str, float]:
        """By block, the smallest norm that counts in a layer: so many medians of its norms that are not 0. Takes a pass of its own."""
        norms: dict[str, list[FloatArray]] = {}
        for group in (group for capture in captures for group in groups(capture, self._samples)):
            # Planned as it will be later: a norm that is the median has to be found again to the last bit.
            for _, grams in neuron_grams(group, planned=self._plan(group)):
                for name, gram in (*grams.items(), (ALL, _total(grams))):
                    pairs = Pairs(gram)
                    found = pairs.norms[pairs.counted].double().cpu().numpy()
                    norms.setdefault(name, []).append(found * 2.0**-group.scaling.exponent)
        every = {name: np.concatenate(each) for name, each in norms.items()}
        return {name: self._settings.floor * float(np.median(each)) for name, each in every.items() if each.size}


def _total(grams: Mapping[str, Tensor]) -> Tensor:
    first, *others = grams.values()
    total = first.clone() if others else first
    for gram in others:
        total += gram
    return total


def together(sums: Sequence[PairSums]) -> PairSums:
    """Of several layers."""
    total = sums[0]
    for each in sums[1:]:
        total = total + each
    return total
