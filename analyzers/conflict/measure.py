"""Collects the sums of every statistic from the gradients of a model's units, layer by layer, and computes the report's fields from them.

Axes: n units of a chunk, S samples.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add, attrgetter
from typing import Any, TypeVar

import torch

from analyzers.conflict.activity_deciles import Deciles
from analyzers.conflict.grams import UnitGroup
from analyzers.conflict.neurons import Concentration, NeuronTable
from analyzers.conflict.random_batches import BatchSums, partitions
from analyzers.conflict.rates import cosines, difference_interval, dominance, rates, rounded, whole
from analyzers.conflict.report import DataFacts, TopK, Units
from analyzers.conflict.request import ConflictRequest
from analyzers.conflict.rows import (
    TAU,
    Cosines,
    Dominance,
    LayerCosines,
    LayerRow,
    LayerWeights,
    Measurement,
    ModelRow,
    NeuronRow,
    Variant,
    Weights,
)  # fmt: skip
from analyzers.conflict.sample_pairs import FloatArray, Pairs, PairSums, Thresholds, packed
from analyzers.conflict.verdict import advice, answer, notes
from analyzers.conflict.weight_signs import WeightSums
from analyzers.core import limits
from analyzers.core.records import Record

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
        """Add the neurons of one FFN or expert."""
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


RowT = TypeVar("RowT", bound=Record)
# A GPU needs larger chunks: with a CPU's, launching kernels would take longer than running them.
_GPU_CHUNKS = 8


def chunk_bytes(device: str) -> int:
    """Return the bytes of per-sample gradients to hold at a time on ``device``, "cpu" or "cuda"."""
    return limits.GRAM_CHUNK_BYTES * (_GPU_CHUNKS if device == "cuda" else 1)


def settings_of(request: ConflictRequest, dtype: str, order: tuple[int, ...], device: str) -> Settings:
    """Return the settings of a collection. dtype: in which the gradients are computed; order: of the samples; device: "cpu" or "cuda"."""
    return Settings(
        thresholds=Thresholds(request.gamma, TAU[dtype]),
        order=order,
        seed=request.seed,
        weights=request.weights,
        chunk_bytes=chunk_bytes(device),
    )


def measurement(collected: Mapping[Variant, Collector], settings: Settings) -> Measurement:
    """Compute all results. collected: with the original FFN and then, if it was measured, with the top-k FFN."""
    sides = [(ffn, side, model_sums(side.layers)) for ffn, side in collected.items()]
    (_, original, unmodified), (_, requested, model) = sides[0], sides[-1]
    topk, gram = len(sides) > 1, model.sums[ALL].gram

    def merged(key: str, rows: Callable[[Collector, LayerSums], Iterable[RowT]]) -> tuple[RowT, ...]:
        """Return the rows of both FFNs, ordered by ``key``."""
        every = [row.model_copy(update={"ffn": ffn}) for ffn, side, sums in sides for row in rows(side, sums)]
        return tuple(sorted(every, key=attrgetter(key)))

    def layer_rows(side: Collector) -> Iterator[LayerRow]:
        for each in side.layers:
            row = _row(each, side.neurons.concentration(each.layer), settings.thresholds)
            yield LayerRow(layer=each.layer, **dict(row))

    dominances = merged("sample", lambda side, sums: _dominance(side, sums).samples)
    return Measurement(
        model=_row(model, requested.neurons.concentration(None), settings.thresholds),
        original=_row(unmodified, original.neurons.concentration(None), settings.thresholds) if topk else None,
        layers=merged("layer", lambda side, sums: layer_rows(side)),
        change=difference_interval(*((sums.sums[ALL].below, sums.sums[ALL].valid) for sums in (model, unmodified))) if topk else None,
        dominance=_dominance(requested, model).model_copy(update={"samples": dominances}),
        batch_curve=merged("batch_size", lambda side, sums: side.batches.rows(sums.sums[ALL].gram)),
        deciles=merged("decile", lambda side, sums: side.deciles.rows() if side.deciles is not None else ()),
        weights=Weights(
            **dict(model.weights.rates(len(gram))),
            layers=merged("layer", lambda side, sums: (_layer_weights(each, len(gram)) for each in side.layers)),
        )
        if settings.weights
        else None,
        cosines=_cosines(gram, requested.layers),
        neurons=merged("ffn", lambda side, sums: side.neurons.rows(listed=True)),
    )


def every_neuron(collected: Mapping[Variant, Collector]) -> list[NeuronRow]:
    """Return the rows of all units, of each FFN."""
    return [row.model_copy(update={"ffn": ffn}) for ffn, side in collected.items() for row in side.neurons.rows()]


def conflict_fields(
    request: ConflictRequest,
    collected: Mapping[Variant, Collector],
    settings: Settings,
    data: DataFacts,
    dtype: str,
    model: str,
    experts: int | None,
    topk: TopK | None = None,
) -> dict[str, Any]:
    """Return the fields of a report that gradients of any origin have. model: its reference; experts, topk: as of `units_of`."""
    found = measurement(collected, settings)
    return {
        "data": data,
        "ffn": units_of(request, collected["original"], experts, topk),
        "dtype": dtype,
        "tau": settings.thresholds.tau,
        **dict(found),
        "answer": answer(request, found, data, dtype),
        "advice": advice(found, data, model),
        "notes": tuple(notes(request, found, dtype)),
    }


def units_of(request: ConflictRequest, collected: Collector, experts: int | None, topk: TopK | None) -> Units:
    """Describe the measured units. experts: number in a layer; topk: the requested top-k FFN, if any."""
    return Units(
        variant=request.ffn,
        blocks=tuple(dict.fromkeys(name for layer in collected.layers for name in layer.sums if name != ALL)),
        experts=experts,
        topk=topk,
    )


def model_sums(layers: Sequence[LayerSums]) -> LayerSums:
    """Sum all layers into one, whose layer number is meaningless."""
    weights = reduce(add, (layer.weights for layer in layers))
    names = dict.fromkeys(name for layer in layers for name in layer.sums)
    sums = {name: reduce(add, (layer.sums[name] for layer in layers if name in layer.sums)) for name in names}
    return LayerSums(-1, weights, sums)


def _row(sums: LayerSums, units: Concentration, thresholds: Thresholds) -> ModelRow:
    blocks: dict[str, Any] = {name: rates(each) for name, each in sums.sums.items() if name != ALL}
    every = sums.sums[ALL]
    return ModelRow(
        **dict(rates(every)),
        **blocks,
        neurons=units.units,
        dead=units.dead,
        neuron_top_share=units.top_share,
        neuron_effective_samples=units.effective,
        whole=whole(every.gram, thresholds),
    )


def _dominance(side: Collector, model: LayerSums) -> Dominance:
    return dominance(model.sums[ALL].gram, side.neurons.concentration(None).leading)


def _layer_weights(sums: LayerSums, samples: int) -> LayerWeights:
    return LayerWeights(layer=sums.layer, **dict(sums.weights.rates(samples)))


def _cosines(gram: FloatArray, layers: Sequence[LayerSums]) -> Cosines:
    few = len(layers) * gram.size <= limits.REPORT_COSINES
    each = {sums.layer: rounded(cosines(sums.sums[ALL].gram), 6) for sums in layers} if few else {}
    return Cosines(
        model=rounded(cosines(gram), 6), layers=tuple(LayerCosines(layer=layer, values=values) for layer, values in sorted(each.items()))
    )
