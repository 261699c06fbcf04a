"""The report as pandas tables."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from analyzers.extras import extras_explained
from analyzers.gradient_conflict.published import PublishedRow, comparable, published
from analyzers.gradient_conflict.report import ConflictReport
from analyzers.gradient_conflict.request import ATTENTION_BLOCKS, COMBINED_BLOCKS, FFN_BLOCKS
from analyzers.gradient_conflict.summaries import (
    BatchRow,
    DecileRow,
    LayerWeights,
    Measurement,
    ModelRow,
    NeuronRow,
    Rates,
    SampleDominance,
    Whole,
)  # fmt: skip
from analyzers.tables import frame, table

if TYPE_CHECKING:
    import pandas

_RATES = (
    "pairs", "conflict_rate", "low", "high", "undecided_low", "undecided_high", "conflict_rate_historic", "magnitude_similarity",
    "magnitude_similarity_historic", "mean_cosine",
)  # fmt: skip
_UNITS = ("neurons", "dead", "neuron_top_share", "neuron_effective_samples")
_BLOCKS = (*FFN_BLOCKS, *COMBINED_BLOCKS, *ATTENTION_BLOCKS)


@extras_explained()
def tables(report: ConflictReport) -> "dict[str, pandas.DataFrame]":
    """``summary`` (one row), ``layers``, ``blocks``, ``samples``, ``batches``, ``deciles``, ``weights``, ``cosines``, ``neurons``,
    ``differences``, ``published``.
    """
    import pandas

    def each(name: str) -> Iterator[dict[str, Any]]:
        for ffn, found in _sides(report):
            yield from ({"ffn": ffn, **row.model_dump()} for row in getattr(found, name))

    whole = tuple(f"whole_{name}" for name in Whole.model_fields if name not in ("pairs", "interval", "undecided"))
    sample = tuple(SampleDominance.model_fields)
    return {
        "summary": pandas.DataFrame([summary_row(report)]),
        "layers": table(_layers(report), "ffn", "layer", *_UNITS, *_RATES, *whole),
        "blocks": table(_blocks(report), "ffn", "layer", "block", *_RATES),
        "samples": table(_samples(report), "ffn", *sample, "row", "loss", "tokens", "answer_start", "truncated", "text"),
        "batches": table(each("batch_curve"), "ffn", *BatchRow.model_fields),
        "deciles": table(
            map(_bounds, each("deciles")), "ffn", *(name for name in DecileRow.model_fields if name != "interval"), "low", "high"
        ),
        "weights": table(_weights(report), "ffn", *LayerWeights.model_fields),
        "cosines": table(_cosines(report), "ffn", "layer", "sample", "other", "cosine"),
        "neurons": neurons({ffn: frame(_ranked(found), NeuronRow) for ffn, found in _sides(report)}),
        "differences": table(
            (_bounds(row.model_dump()) for row in report.differences),
            "layer", "conflict_rate", "low", "high", "magnitude_similarity", "neuron_top_share", "neuron_effective_samples",
        ),
        "published": frame(published() if comparable(report) else (), PublishedRow),
    }  # fmt: skip


def neurons(tables: "Mapping[str, pandas.DataFrame]") -> "pandas.DataFrame":
    """Rows of units by kind of FFN as one table, without columns that are empty: expert without experts, block for FFN neurons."""
    import pandas

    table = pandas.concat([each.assign(ffn=ffn) for ffn, each in tables.items()], ignore_index=True)
    columns = [name for name in NeuronRow.model_fields if name not in ("expert", "block") or table[name].notna().any()]
    return table[["ffn", *columns]]


def _ranked(found: Measurement) -> Sequence[NeuronRow]:
    """Those listed, from the most to the least conflicted."""
    return [] if found.neurons is None else [*found.neurons.most, *reversed(found.neurons.least)]


def summary_row(report: ConflictReport) -> dict[str, Any]:
    """One row per report."""
    topk = report.ffn.topk
    described = f"{topk.select} {topk.share_of_width or topk.share_of_sum:g} layers {topk.layers[0]}-{topk.layers[-1]}" if topk else None
    rates = _rates(report.model)
    return {
        "model": report.checkpoint.ref,
        "commit": report.checkpoint.commit[:12],
        "ffn": report.ffn.variant,
        "topk": described,
        "unit": report.ffn.unit,
        "data": report.data.source,
        "samples": report.data.samples,
        "tokens": report.data.tokens,
        "neurons": report.ffn.neurons,
        **{name: rates[name] for name in _RATES[1:8]},
        "whole_conflict_rate": report.model.whole.conflict_rate,
        "noise_scale": report.model.whole.noise_scale,
        "effective_samples": report.dominance.effective_samples,
        "top_share": report.dominance.top_share,
        "dtype": report.dtype,
        "statement": report.statement,
    }


def _sides(report: ConflictReport) -> Iterator[tuple[str, Measurement]]:
    yield report.ffn.variant, report
    if report.original is not None:
        yield "original", report.original


def _model_and_layers(report: ConflictReport) -> Iterator[tuple[str, int | None, ModelRow]]:
    for ffn, found in _sides(report):
        yield ffn, None, found.model
        yield from ((ffn, row.layer, row) for row in found.layers)


def _layers(report: ConflictReport) -> Iterator[dict[str, Any]]:
    for ffn, layer, row in _model_and_layers(report):
        whole = {f"whole_{name}": value for name, value in row.whole.model_dump(exclude={"pairs", "interval", "undecided"}).items()}
        yield {"ffn": ffn, "layer": layer, **row.model_dump(include=set(_UNITS)), **_rates(row), **whole}


def _blocks(report: ConflictReport) -> Iterator[dict[str, Any]]:
    for ffn, layer, row in _model_and_layers(report):
        for block in _BLOCKS:
            rates: Rates | None = getattr(row, block)
            if rates is not None:
                yield {"ffn": ffn, "layer": layer, "block": "+".join(COMBINED_BLOCKS.get(block, (block,))), **_rates(rates)}


def _rates(row: Rates) -> dict[str, Any]:
    line = _bounds(row.model_dump(include={*_RATES, "interval"}))
    return line | {"undecided_low": row.undecided.low, "undecided_high": row.undecided.high}


def _bounds(line: dict[str, Any]) -> dict[str, Any]:
    """A dumped row with the bounds of its interval in place of the interval."""
    interval = line.pop("interval") or {}
    return line | {"low": interval.get("low"), "high": interval.get("high")}


def _samples(report: ConflictReport) -> Iterator[dict[str, Any]]:
    for ffn, found in _sides(report):
        for row in found.dominance.samples:
            sample = report.samples[row.sample]
            line = {"ffn": ffn, **row.model_dump(), "answer_start": sample.answer_start, "row": sample.row}
            line["tokens"] = None if sample.token_ids is None else len(sample.token_ids)
            loss = sample.loss if ffn == report.ffn.variant else None
            yield line | {"loss": loss, "truncated": sample.truncated, "text": sample.text}


def _weights(report: ConflictReport) -> Iterator[dict[str, Any]]:
    for ffn, found in _sides(report):
        if found.weights is not None:
            yield {"ffn": ffn, "layer": None, **found.weights.model_dump(exclude={"layers"})}
            yield from ({"ffn": ffn, **row.model_dump()} for row in found.weights.layers)


def _cosines(report: ConflictReport) -> Iterator[dict[str, Any]]:
    """Each pair once, of the whole model only: the report has the layers."""
    for ffn, found in _sides(report):
        for sample, row in enumerate(found.cosines.model):
            for other, cosine in enumerate(row[:sample]):
                yield {"ffn": ffn, "layer": None, "sample": sample, "other": other, "cosine": cosine}
