"""Collects the sums of every statistic from the gradients of a model's units, layer by layer, freeing them after use.

Axes: n units of a chunk, S samples.
"""

from dataclasses import dataclass, field

import torch

from analyzers.core import limits
from analyzers.gradient_conflict.activity_deciles import Deciles
from analyzers.gradient_conflict.grams import UnitGroup
from analyzers.gradient_conflict.neurons import NeuronTable
from analyzers.gradient_conflict.random_batches import BatchSums, partitions
from analyzers.gradient_conflict.sample_pairs import Pairs, PairSums, Thresholds, packed
from analyzers.gradient_conflict.weight_signs import WeightSums

ALL = "all"


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a collection.

    order: a permutation of the samples, from which halves and, with ``seed``, batches are drawn. weights: also measure individual weights.
    chunk_bytes: per-sample gradients held at a time.
    """

    thresholds: Thresholds
    order: tuple[int, ...]
    seed: int = 0
    weights: bool = True
    chunk_bytes: int = limits.GRAM_CHUNK_BYTES


@dataclass(slots=True)
class LayerSums:
    """Sums of one layer. sums: by block, and for all blocks together under `ALL`."""

    layer: int
    weights: WeightSums
    sums: dict[str, PairSums] = field(default_factory=dict)

    def add(self, name: str, sums: PairSums) -> None:
        """Add the sums of a chunk of the layer's units to those of the block ``name``."""
        self.sums[name] = self.sums[name] + sums if name in self.sums else sums


class Collector:
    """Accumulator of gradients. Layers may come in any order; the units of a layer must be contiguous."""

    def __init__(self, samples: int, settings: Settings) -> None:
        self.layers: list[LayerSums] = []
        self.batches = BatchSums(partitions(settings.order, settings.seed), settings.thresholds.gamma)
        self.deciles: Deciles | None = None
        self.neurons = NeuronTable(samples, settings.thresholds.gamma)
        self._samples = samples
        self._settings = settings

    def add(self, group: UnitGroup) -> None:
        """Add the units of one FFN, expert or projection."""
        if not self.layers or self.layers[-1].layer != group.layer:
            self.layers.append(LayerSums(group.layer, WeightSums()))
        if group.activity is not None and group.tokens is not None and self._samples >= 4:
            self.deciles = self.deciles or Deciles(self._settings.order, self._settings.thresholds.gamma)
            self.deciles.begin(group.activity, group.tokens)
        self.neurons.begin(group)
        for units in group.chunks(self._settings.chunk_bytes):
            self._add_chunk(group, units, self.layers[-1])

    def _add_chunk(self, group: UnitGroup, units: slice, layer: LayerSums) -> None:
        settings, grams = self._settings, {}
        for name, gradients_of in group.gradients.items():
            gradients = gradients_of(units)
            grams[name] = torch.bmm(gradients, gradients.transpose(1, 2))
            if settings.weights:
                layer.weights.add(gradients.transpose(0, 1), group.exponent)
            del gradients  # freed before the next block's are computed
        every = {name: packed(gram) for name, gram in grams.items()}
        every[ALL] = sum(every.values(), torch.zeros(()))  # A Gram matrix of concatenated gradients is a sum.
        pairs = {name: Pairs(gram, self._samples) for name, gram in every.items()}
        for name, of_block in pairs.items():
            layer.add(name, PairSums.of(of_block, settings.thresholds, group.exponent))
        self.batches.add(sum(grams.values(), torch.zeros(())))
        self.neurons.add(units, pairs[ALL])
        if self.deciles is not None:
            self.deciles.add(units, pairs[ALL])
