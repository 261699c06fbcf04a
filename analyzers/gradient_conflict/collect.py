"""Collects the sums of every statistic from the captures of one backward pass, layer by layer, freeing each capture after use.

Axes: n units of a chunk, S samples.
"""

from dataclasses import dataclass, field

import numpy as np
import torch

from analyzers.core import limits
from analyzers.gradient_conflict.activity_deciles import Deciles
from analyzers.gradient_conflict.grams import Group, Products, groups
from analyzers.gradient_conflict.neurons import NeuronTable
from analyzers.gradient_conflict.random_batches import BatchSums, partitions
from analyzers.gradient_conflict.sample_pairs import FloatArray, Pairs, PairSums, Thresholds, packed
from analyzers.gradient_conflict.weight_signs import WeightSums
from analyzers.language_models.layer_capture import LayerCapture

ALL = "all"


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a collection.

    epsilon: smallest norm. order: a permutation of the samples, from which halves and, with ``seed``, batches are drawn. weights: also
    measure individual weights. chunk_bytes: as in `grams.chunk_sizes`.
    """

    thresholds: Thresholds
    order: tuple[int, ...]
    epsilon: float = 0.0
    seed: int = 0
    weights: bool = True
    chunk_bytes: int = limits.GRAM_CHUNK_BYTES


@dataclass(slots=True)
class UnitSums:
    """Concentration of a unit's squared norms over the samples, summed over the units that have any gradient (``live``).

    top_share: the largest sample's share; effective: the effective number of samples; leading: (S,), units in which the sample has the
    largest norm (ties count for the first).
    """

    live: int
    dead: int
    top_share: float
    effective: float
    leading: FloatArray

    @property
    def mean_top_share(self) -> float | None:
        """Mean share of the largest sample, over live units."""
        return self.top_share / self.live if self.live else None

    @property
    def mean_effective(self) -> float | None:
        """Mean effective number of samples, over live units."""
        return self.effective / self.live if self.live else None

    @classmethod
    def none(cls, samples: int) -> "UnitSums":
        """Return the sums over no units."""
        return cls(0, 0, 0.0, 0.0, np.zeros(samples))

    def add(self, pairs: Pairs) -> None:
        """Add the units of a chunk."""
        squares = torch.where(pairs.counted, pairs.squares, 0).t().double()
        shares = squares[squares.sum(1) > 0]
        self.live += len(shares)
        self.dead += len(squares) - len(shares)
        if len(shares):
            shares = shares / shares.sum(1, keepdim=True)
            self.top_share += float(shares.amax(1).sum())
            self.effective += float((1 / shares.square().sum(1)).sum())
            self.leading += torch.bincount(shares.argmax(1), minlength=squares.shape[1]).double().cpu().numpy()

    def __add__(self, other: "UnitSums") -> "UnitSums":
        return UnitSums(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))


@dataclass(slots=True)
class LayerSums:
    """Sums of one layer. sums: by block, and for all blocks together under `ALL`."""

    layer: int
    neurons: int
    units: UnitSums
    weights: WeightSums
    sums: dict[str, PairSums] = field(default_factory=dict)

    def add(self, name: str, sums: PairSums) -> None:
        """Add the sums of a chunk of the layer's units to those of the block ``name``."""
        self.sums[name] = self.sums[name] + sums if name in self.sums else sums


class Collector:
    """Accumulator of captures. Layers may come in any order; the captures of a layer must be contiguous."""

    def __init__(self, samples: int, settings: Settings) -> None:
        self.layers: list[LayerSums] = []
        self.batches = BatchSums(partitions(settings.order, settings.seed), settings.thresholds.gamma)
        self.deciles: Deciles | None = None
        self.neurons = NeuronTable(samples, settings.thresholds.gamma)
        self._samples = samples
        self._settings = settings

    def add(self, capture: LayerCapture) -> None:
        """Add one FFN, expert or attention. Raises InvalidCheckpoint if the gradients are not finite."""
        if not self.layers or self.layers[-1].layer != capture.layer:
            self.layers.append(LayerSums(capture.layer, 0, UnitSums.none(self._samples), WeightSums()))
        if capture.activity is not None and self._samples >= 4:
            self.deciles = self.deciles or Deciles(self._settings.order, self._settings.thresholds.gamma)
            self.deciles.begin(capture.activity, capture.tokens)
        for group in groups(capture, self._samples):
            block = None if capture.of_neurons else group.blocks[0].name
            self.neurons.begin(capture.layer, capture.expert, block, capture.activity, capture.tokens)
            self._add_group(group, self.layers[-1])

    def _add_group(self, group: Group, layer: LayerSums) -> None:
        products = Products(group, self._settings.chunk_bytes)
        for units in products.chunks:
            self._add_chunk(products, units, group.scaling.exponent, layer)
        layer.neurons += group.units

    def _add_chunk(self, products: Products, units: slice, exponent: int, layer: LayerSums) -> None:
        settings = self._settings
        grams = products.grams(units, layer.weights if settings.weights else None)
        every = {name: packed(gram) for name, gram in grams.items()}
        every[ALL] = sum(every.values(), torch.zeros(()))  # A Gram matrix of concatenated gradients is a sum.
        pairs = {name: Pairs(gram, self._samples, settings.epsilon * 2.0**exponent) for name, gram in every.items()}
        for name, of_block in pairs.items():
            layer.add(name, PairSums.of(of_block, settings.thresholds, exponent))
        together = pairs[ALL]
        layer.units.add(together.of_all())
        self.batches.add(sum(grams.values(), torch.zeros(())))
        self.neurons.add(units, together)
        if self.deciles is not None:
            self.deciles.add(units, together)
