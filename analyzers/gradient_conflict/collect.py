"""What one backward pass brings, layer by layer, taken in by every analysis at once and then forgotten.

Axes: n units of a chunk, S samples.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from analyzers import limits
from analyzers.gradient_conflict.batches import BatchSums, partitions
from analyzers.gradient_conflict.cost import Cost, Route
from analyzers.gradient_conflict.deciles import Deciles
from analyzers.gradient_conflict.grams import Group, Plan, Products, groups, plan
from analyzers.gradient_conflict.jackknife import FloatArray
from analyzers.gradient_conflict.neurons import NeuronTable
from analyzers.gradient_conflict.pairs import SMALLEST_SQUARE, Pairs, PairSums, Thresholds
from analyzers.gradient_conflict.weights import WeightSums
from analyzers.language_models.layer_capture import LayerCapture
from analyzers.language_models.side_by_side import side_by_side

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
    chunk_bytes: int = limits.GRAM_CHUNK_BYTES
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

    @property
    def mean_top_share(self) -> float | None:
        """Over live units."""
        return self.top_share / self.live if self.live else None

    @property
    def mean_effective(self) -> float | None:
        """Over live units, the effective number of samples."""
        return self.effective / self.live if self.live else None

    @classmethod
    def none(cls, samples: int) -> "UnitSums":
        """Of no units."""
        return cls(0, 0, 0.0, 0.0, np.zeros(samples))

    def add(self, pairs: Pairs) -> None:
        """Take in a chunk."""
        compiled = pairs.gram.device.type == "cpu" and pairs.gram.dtype == torch.float32
        live, top_share, effective, leading = (_compiled_shares if compiled else _torch_shares)(pairs)
        self.live += live
        self.dead += len(pairs.gram) - live
        self.top_share += top_share
        self.effective += effective
        self.leading += leading

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


@dataclass(frozen=True, slots=True)
class _Counted:
    """What a chunk of units brings to each of the sums."""

    sums: dict[str, PairSums]
    units: UnitSums
    weights: WeightSums
    batches: dict[int, FloatArray]
    deciles: FloatArray | None


class Collector:
    """Takes in captures, the layers in any order, the captures of a layer one after the other."""

    def __init__(self, samples: int, settings: Settings) -> None:
        self.layers: list[LayerSums] = []
        self.cost = Cost()
        self.routes: dict[Route, int] = {"direct": 0, "tokens": 0}
        self.batches = BatchSums(partitions(settings.order, settings.seed), settings.thresholds.gamma)
        self.deciles: Deciles | None = None
        self.neurons = NeuronTable(samples, settings.thresholds.gamma)
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
            block = group.blocks[0].name if capture.activity is None else None
            self.neurons.begin(capture.layer, capture.expert, block, capture.activity, capture.tokens)
            self._add_group(group, self.layers[-1], floors)

    def _plan(self, group: Group) -> Plan:
        return plan(group, self._settings.chunk_bytes, "direct" if self._settings.weights else self._settings.route)

    def _add_group(self, group: Group, layer: LayerSums, floors: Mapping[str, float]) -> None:
        floors = {name: floor * 2.0**group.scaling.exponent for name, floor in floors.items()}
        planned = self._plan(group)
        self.cost += planned.cost
        self.routes[planned.route] += len(group.blocks)
        products = Products(group, planned)

        def count(units: slice) -> _Counted:
            return self._count(products, units, group.scaling.exponent, floors)

        with closing(side_by_side(count, products.chunks, group.device, planned.at_once)) as chunks:
            for found in chunks:
                self._take(layer, found)
        layer.neurons += group.units

    def _count(self, products: Products, units: slice, exponent: int, floors: Mapping[str, float]) -> "_Counted":
        """All that a chunk brings."""
        settings, weights, sums = self._settings, WeightSums(), {}
        grams = products.grams(units, weights if settings.weights else None)
        for name, gram in grams.items():
            floor = floors.get(name, 0.0)
            sums[name] = PairSums.of(Pairs(gram, floor), settings.thresholds, floor, exponent)
        floor = floors.get(ALL, 0.0)
        together = Pairs(_total(grams), floor)
        sums[ALL] = PairSums.of(together, settings.thresholds, floor, exponent)
        of_units = UnitSums.none(self._samples)
        of_units.add(Pairs(together.gram) if floors else together)
        self.neurons.add(units, together)
        deciles = None if self.deciles is None else self.deciles.of(units, together)
        return _Counted(sums, of_units, weights, self.batches.of(together.gram), deciles)

    def _take(self, layer: LayerSums, found: "_Counted") -> None:
        for name, sums in found.sums.items():
            layer.sums[name] = layer.sums[name] + sums if name in layer.sums else sums
        layer.units.merge(found.units)
        layer.weights.merge(found.weights)
        self.batches.take(found.batches)
        if self.deciles is not None and found.deciles is not None:
            self.deciles.take(found.deciles)

    def _floors(self, captures: Sequence[LayerCapture]) -> dict[str, float]:
        """By block, the smallest norm that counts in a layer: so many medians of its norms that are not 0. Takes a pass of its own."""
        norms: dict[str, list[FloatArray]] = {}
        for group in (group for capture in captures for group in groups(capture, self._samples)):
            # As it will be done later: a norm that is the median has to be found again to the last bit.
            planned = self._plan(group)
            products = Products(group, planned)
            for found in side_by_side(partial(_norms, products), products.chunks, group.device, planned.at_once):
                for name, each in found.items():
                    norms.setdefault(name, []).append(each * 2.0**-group.scaling.exponent)
        every = {name: np.concatenate(each) for name, each in norms.items()}
        return {name: self._settings.floor * float(np.median(each)) for name, each in every.items() if each.size}


def _compiled_shares(pairs: Pairs) -> tuple[int, float, float, FloatArray]:
    """What units bring to `UnitSums`: ``live``, ``top_share``, ``effective`` and ``leading``."""
    from analyzers.numerics.grams import sum_shares

    return sum_shares(pairs.gram.contiguous().numpy(), SMALLEST_SQUARE)


def _torch_shares(pairs: Pairs) -> tuple[int, float, float, FloatArray]:
    """The same, in any dtype and on any device."""
    squares = torch.where(pairs.counted, pairs.squares, 0).double()
    live = squares[squares.sum(1) > 0]
    shares = live / live.sum(1, keepdim=True)
    leading = torch.bincount(shares.argmax(1), minlength=squares.shape[1]) if len(live) else live.new_zeros(squares.shape[1])
    top = float(shares.amax(1).sum()) if len(live) else 0.0
    return len(live), top, float((1 / shares.square().sum(1)).sum()), leading.double().cpu().numpy()


def _norms(products: Products, units: slice) -> dict[str, FloatArray]:
    """By block, those of a chunk that are not 0, and of all blocks together."""
    grams = products.grams(units)
    pairs = {name: Pairs(gram) for name, gram in (*grams.items(), (ALL, _total(grams)))}
    return {name: each.norms[each.counted].double().cpu().numpy() for name, each in pairs.items()}


def _total(grams: Mapping[str, Tensor]) -> Tensor:
    first, *others = grams.values()
    if not others:
        return first
    total = first + others[0]
    for gram in others[1:]:
        total += gram
    return total


def together(sums: Sequence[PairSums]) -> PairSums:
    """Of several layers."""
    total = sums[0]
    for each in sums[1:]:
        total = total + each
    return total
