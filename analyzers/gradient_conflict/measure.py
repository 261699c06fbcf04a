"""Computes a `Measurement` from the sums over a model's layers, of one FFN or of the original and a top-k FFN."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import add, attrgetter
from typing import Any, TypeVar

from analyzers.core import limits
from analyzers.core.records import Record
from analyzers.gradient_conflict.collect import ALL, Collector, LayerSums, Settings
from analyzers.gradient_conflict.neurons import Concentration
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
from analyzers.gradient_conflict.sample_pairs import FloatArray, PairSums, Thresholds

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
        differences=_differences(requested, original) if topk else (),
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
    weights = reduce(add, (layer.weights for layer in layers))
    names = dict.fromkeys(name for layer in layers for name in layer.sums)
    sums = {name: reduce(add, (layer.sums[name] for layer in layers if name in layer.sums)) for name in names}
    return LayerSums(-1, weights, sums)


def _differences(one: Collector, other: Collector) -> tuple[Difference, ...]:
    """Subtract ``other`` from ``one``, measured on the same samples: for the model (layer null), then layer by layer."""
    layers = sorted(zip(one.layers, other.layers, strict=True), key=lambda pair: pair[0].layer)
    pairs: list[tuple[int | None, LayerSums, LayerSums]] = [(None, model_sums(one.layers), model_sums(other.layers))]
    pairs += [(first.layer, first, second) for first, second in layers]
    return tuple(
        _difference(first.sums[ALL], second.sums[ALL], layer, [each.neurons.concentration(layer) for each in (one, other)])
        for layer, first, second in pairs
    )


def _difference(first: PairSums, second: PairSums, layer: int | None, units: Sequence[Concentration]) -> Difference:
    conflict = [pair_share(each.below, each.valid) for each in (first, second)]
    similarity = [pair_share(each.similarity, each.valid) for each in (first, second)]
    return Difference(
        layer=layer,
        conflict_rate=_less(conflict),
        interval=difference_interval((first.below, first.valid), (second.below, second.valid)),
        magnitude_similarity=_less(similarity),
        neuron_top_share=_less([each.top_share for each in units]),
        neuron_effective_samples=_less([each.effective for each in units]),
    )


def _less(values: Sequence[float | None]) -> float | None:
    first, second = values
    return None if first is None or second is None else first - second


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
