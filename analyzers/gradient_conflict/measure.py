"""Computes a `Measurement` from the sums over a model's layers, of one FFN or of the original and a top-k FFN."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from operator import add, attrgetter
from typing import Any, TypeVar

import numpy as np

from analyzers.core import limits
from analyzers.core.records import Record
from analyzers.gradient_conflict.collect import ALL, Collector, LayerSums, Settings
from analyzers.gradient_conflict.rates import cosines, difference_interval, dominance, pair_share, rates, rounded, whole
from analyzers.gradient_conflict.report import TopK, Units
from analyzers.gradient_conflict.request import ConflictRequest
from analyzers.gradient_conflict.rows import (
    TAU,
    Cosines,
    Difference,
    Dominance,
    LayerCosines,
    LayerRow,
    LayerWeights,
    Measurement,
    ModelRow,
    NeuronRow,
    Variant,
    Weights,
)
from analyzers.gradient_conflict.sample_pairs import FloatArray, Thresholds

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
        epsilon=request.epsilon,
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

    dominances = merged("sample", lambda side, sums: _dominance(sums).samples)
    return Measurement(
        model=_row(model, settings.thresholds),
        original=_row(unmodified, settings.thresholds) if topk else None,
        layers=merged("layer", lambda side, sums: (_layer_row(each, settings.thresholds) for each in side.layers)),
        differences=_differences(requested.layers, original.layers) if topk else (),
        dominance=_dominance(model).model_copy(update={"samples": dominances}),
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


def units_of(request: ConflictRequest, collected: Collector, experts: int | None, topk: TopK | None) -> Units:
    """Describe the measured units. experts: number in a layer; topk: the requested top-k FFN, if any."""
    return Units(
        variant=request.ffn,
        unit=request.unit,
        blocks=tuple(dict.fromkeys(name for layer in collected.layers for name in layer.sums if name != ALL)),
        experts=experts if request.unit == "ffn" else None,
        topk=topk,
    )


def model_sums(layers: Sequence[LayerSums]) -> LayerSums:
    """Sum all layers into one, whose layer number is meaningless."""
    units, weights = reduce(add, (layer.units for layer in layers)), reduce(add, (layer.weights for layer in layers))
    names = dict.fromkeys(name for layer in layers for name in layer.sums)
    sums = {name: reduce(add, (layer.sums[name] for layer in layers if name in layer.sums)) for name in names}
    return LayerSums(-1, sum(layer.neurons for layer in layers), units, weights, sums)


def _differences(first: Sequence[LayerSums], second: Sequence[LayerSums]) -> tuple[Difference, ...]:
    """Subtract ``second`` from ``first``, measured on the same samples: for the model (layer null), then layer by layer."""
    layers = sorted(zip(first, second, strict=True), key=lambda pair: pair[0].layer)
    return (
        _difference(None, model_sums(first), model_sums(second)),
        *(_difference(one.layer, one, other) for one, other in layers),
    )


def _difference(layer: int | None, one: LayerSums, other: LayerSums) -> Difference:
    first, second = one.sums[ALL], other.sums[ALL]
    conflict = [pair_share(each.below, each.valid) for each in (first, second)]
    similarity = [pair_share(each.similarity, each.valid) for each in (first, second)]
    return Difference(
        layer=layer,
        conflict_rate=_less(conflict),
        interval=difference_interval((first.below, first.valid), (second.below, second.valid)),
        magnitude_similarity=_less(similarity),
        neuron_top_share=_less([each.units.mean_top_share for each in (one, other)]),
        neuron_effective_samples=_less([each.units.mean_effective for each in (one, other)]),
    )


def _less(values: Sequence[float | None]) -> float | None:
    first, second = values
    return None if first is None or second is None else first - second


def _row(sums: LayerSums, thresholds: Thresholds) -> ModelRow:
    blocks: dict[str, Any] = {name: rates(each) for name, each in sums.sums.items() if name != ALL}
    every = sums.sums[ALL]
    return ModelRow(
        **dict(rates(every)),
        **blocks,
        neurons=sums.neurons,
        dead=sums.units.dead,
        neuron_top_share=sums.units.mean_top_share,
        neuron_effective_samples=sums.units.mean_effective,
        whole=whole(every.gram, thresholds),
    )


def _layer_row(sums: LayerSums, thresholds: Thresholds) -> LayerRow:
    row = _row(sums, thresholds)
    return LayerRow(layer=sums.layer, **dict(row))


def _dominance(model: LayerSums) -> Dominance:
    gram, units = model.sums[ALL].gram, model.units
    return dominance(gram, units.leading / units.live if units.live else np.full(len(gram), np.nan))


def _layer_weights(sums: LayerSums, samples: int) -> LayerWeights:
    return LayerWeights(layer=sums.layer, **dict(sums.weights.rates(samples)))


def _cosines(gram: FloatArray, layers: Sequence[LayerSums]) -> Cosines:
    few = len(layers) * gram.size <= limits.REPORT_COSINES
    each = {sums.layer: rounded(cosines(sums.sums[ALL].gram), 6) for sums in layers} if few else {}
    return Cosines(
        model=rounded(cosines(gram), 6), layers=tuple(LayerCosines(layer=layer, values=values) for layer, values in sorted(each.items()))
    )
