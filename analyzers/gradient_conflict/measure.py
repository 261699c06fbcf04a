"""Computes a `Measurement` from the sums over a model's layers, and the effect of a top-k FFN from two sets of sums."""

from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from analyzers import limits
from analyzers.gradient_conflict.collect import ALL, Collector, LayerSums, Settings, UnitSums
from analyzers.gradient_conflict.rates import cosines, difference_interval, dominance, pair_share, rates, rounded, whole
from analyzers.gradient_conflict.report import Difference, LayerRate, TopK, Units, Work
from analyzers.gradient_conflict.request import ATTENTION_BLOCKS, FFN_BLOCKS, ConflictRequest
from analyzers.gradient_conflict.sample_pairs import FloatArray, Thresholds
from analyzers.gradient_conflict.summaries import Cosines, Dominance, LayerCosines, LayerRow, LayerWeights, Measurement, ModelRow, Weights
from analyzers.gradient_conflict.weight_signs import WeightSums

# A GPU needs larger chunks: with a CPU's, launching kernels would take longer than running them.
_GPU_CHUNKS = 8


def chunk_bytes(device: str) -> int:
    """Return the bytes of per-sample gradients to hold at a time on ``device``, "cpu" or "cuda"."""
    return limits.GRAM_CHUNK_BYTES * (_GPU_CHUNKS if device == "cuda" else 1)


def measurement(collected: Collector, settings: Settings) -> Measurement:
    """Compute all results for one kind of FFN."""
    layers, thresholds = collected.layers, settings.thresholds
    model = model_sums(layers)
    gram = model.sums[ALL].gram
    return Measurement(
        layers=tuple(LayerRow(layer=each.layer, **dict(_row(each, thresholds))) for each in layers),
        model=_row(model, thresholds),
        dominance=_dominance(gram, model.units),
        batch_curve=collected.batches.rows(gram),
        deciles=collected.deciles.rows() if collected.deciles is not None else (),
        weights=_weights(layers, model.weights, len(gram)) if settings.weights else None,
        cosines=_cosines(gram, layers),
        neurons=collected.neurons.summary(),
    )


def layer_rates(layers: Sequence[LayerSums]) -> tuple[LayerRate, ...]:
    """Return the layers' conflict rates, for progress."""
    return tuple(LayerRate(layer=each.layer, conflict_rate=pair_share(each.sums[ALL].below, each.sums[ALL].valid)) for each in layers)


def units_of(request: ConflictRequest, collected: Collector, experts: int | None, topk: TopK | None) -> Units:
    """Describe the measured units. experts: number in a layer; topk: the requested top-k FFN, if any."""
    names = (name for layer in collected.layers for name in layer.sums)
    return Units(
        variant=request.ffn,
        unit=request.unit,
        blocks=tuple(dict.fromkeys(name for name in names if name in (*FFN_BLOCKS, *ATTENTION_BLOCKS))),
        layers=len(collected.layers),
        neurons=sum(layer.neurons for layer in collected.layers),
        experts=experts if request.unit == "ffn" else None,
        topk=topk,
    )


def work_of(collected: Sequence[Collector]) -> Work:
    """Sum the work of several collections."""
    return Work(
        flops=sum(each.flops for each in collected),
        bytes=sum(each.bytes for each in collected),
        direct=sum(each.blocks for each in collected),
        tokens=0,
    )


def model_sums(layers: Sequence[LayerSums]) -> LayerSums:
    """Sum all layers into one, whose layer number is meaningless."""
    units, weights = reduce(add, (layer.units for layer in layers)), reduce(add, (layer.weights for layer in layers))
    names = dict.fromkeys(name for layer in layers for name in layer.sums)
    sums = {name: reduce(add, (layer.sums[name] for layer in layers if name in layer.sums)) for name in names}
    return LayerSums(-1, sum(layer.neurons for layer in layers), units, weights, sums)


def differences(first: Sequence[LayerSums], second: Sequence[LayerSums]) -> tuple[Difference, ...]:
    """Subtract ``second`` from ``first``, measured on the same samples: for the model (layer null), then layer by layer, the last first."""
    sides: list[tuple[int | None, LayerSums, LayerSums]] = [(None, model_sums(first), model_sums(second))]
    sides += [(one.layer, one, other) for one, other in zip(first, second, strict=True)]
    return tuple(_difference(layer, one, other) for layer, one, other in sides)


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


def _dominance(gram: FloatArray, units: UnitSums) -> Dominance:
    leading = units.leading / units.live if units.live else np.full(len(gram), np.nan)
    of_whole = whole(gram, Thresholds(0.0, 0.0))
    return Dominance(
        top_sample=int(np.argmax(np.diag(gram))) if of_whole.top_share is not None else None,
        top_share=of_whole.top_share,
        effective_samples=of_whole.effective_samples,
        diversity=of_whole.diversity,
        neuron_top_share=units.mean_top_share,
        neuron_effective_samples=units.mean_effective,
        samples=dominance(gram, leading),
    )


def _weights(layers: Sequence[LayerSums], model: WeightSums, samples: int) -> Weights:
    each = tuple(LayerWeights(layer=layer.layer, **dict(layer.weights.rates(samples))) for layer in layers)
    return Weights(**dict(model.rates(samples)), layers=each)


def _cosines(gram: FloatArray, layers: Sequence[LayerSums]) -> Cosines:
    few = len(layers) * gram.size <= limits.REPORT_COSINES
    return Cosines(
        model=rounded(cosines(gram), 6),
        layers=tuple(LayerCosines(layer=each.layer, values=rounded(cosines(each.sums[ALL].gram), 6)) for each in layers) if few else (),
    )
