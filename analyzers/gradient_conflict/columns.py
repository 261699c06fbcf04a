"""The tables of gradient conflict."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from analyzers.columns import Column, Table, formatted
from analyzers.formatting import NOTHING, between, count, magnitude, rounded, share
from analyzers.gradient_conflict.published import PublishedRow, comparable, published
from analyzers.gradient_conflict.report import ConflictReport
from analyzers.gradient_conflict.request import ATTENTION_BLOCKS, COMBINED_BLOCKS, FFN_BLOCKS
from analyzers.gradient_conflict.summaries import BatchRow, DecileRow, LayerWeights, Measurement, NeuronRow, SampleDominance, Whole
from analyzers.language_models.prompt_templates import common_prefix

if TYPE_CHECKING:
    import pandas

_RATES = (
    "pairs", "conflict_rate", "low", "high", "undecided_low", "undecided_high", "conflict_rate_historic", "magnitude_similarity",
    "magnitude_similarity_historic", "mean_cosine",
)  # fmt: skip
_UNITS = ("neurons", "dead", "neuron_top_share", "neuron_effective_samples")
_WHOLE = [f"whole_{name}" for name in Whole.model_fields if name not in ("pairs", "interval", "undecided")]
_BLOCKS = {block: "+".join(COMBINED_BLOCKS.get(block, (block,))) for block in (*FFN_BLOCKS, *COMBINED_BLOCKS, *ATTENTION_BLOCKS)}
_EXCERPT = 600
_NAMES = {"topk": "top-k FFN", "original": "original"}

_FFN = Column("ffn", "FFN", cell=lambda row: _NAMES[row["ffn"]])
_LAYER = Column("layer", "Layer", str, cell=lambda row: "model" if row["layer"] is None else f"{row['layer']}")
_CONFLICT = Column("conflict_rate", "Conflict", share)
_SIMILARITY = Column("magnitude_similarity", "Similarity", magnitude)
_COSINE = Column("mean_cosine", "Mean cosine", magnitude)
_INTERVAL = Column("low", "95% interval", share, "interval.low", cell=lambda row: between(row["interval"]), width=150)
_HIGH = Column("high", value="interval.high")


def sides(report: ConflictReport) -> Iterator[tuple[str, Measurement]]:
    """Yield the measurement of the requested FFN, then that of the original FFN if the requested one is a top-k FFN."""
    yield report.ffn.variant, report
    if report.original is not None:
        yield "original", report.original


def _ffn(report: ConflictReport) -> Sequence[Column]:
    """Return the column that distinguishes the two FFNs, for reports that have both."""
    return () if report.original is None else (_FFN,)


def _summary(report: ConflictReport) -> Iterator[dict[str, Any]]:
    topk = report.ffn.topk
    rates = {column.key: column.value_of(vars(report.model)) for column in _COLUMNS}
    yield {
        "model": report.checkpoint.ref,
        "commit": report.checkpoint.short_commit(),
        "ffn": report.ffn.variant,
        "topk": f"{topk.select} {topk.share_of_width or topk.share_of_sum:g} layers {topk.layers[0]}-{topk.layers[-1]}" if topk else None,
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


_COLUMNS = (
    _CONFLICT,
    _INTERVAL,
    _HIGH,
    Column("undecided_low", "Rate with undecided pairs either way", share, "undecided.low", cell=lambda row: between(row["undecided"])),
    Column("undecided_high", value="undecided.high"),
    _SIMILARITY,
    _COSINE,
    Column("whole_conflict_rate", "Whole layer", share, "whole.conflict_rate"),
    Column("conflict_rate_historic", "Rate as published", share),
    Column("magnitude_similarity_historic"),
    *formatted(count, pairs="Pairs", neurons="Units", dead="Without gradient"),
    *(Column(name, value=name.replace("_", ".", 1)) for name in _WHOLE[1:]),
)


def _layers(report: ConflictReport) -> Iterator[dict[str, Any]]:
    """Yield the rates of the model, then those of its layers, the last layer first."""
    for ffn, side in sides(report):
        yield {"ffn": ffn, "layer": None, **vars(side.model)}
        yield from ({"ffn": ffn, **vars(row)} for row in side.layers)


# A terminal has one column for each block; the page has rows for blocks instead, `BLOCKS`.
LAYERS = Table(
    "layers",
    _layers,
    lambda report: (
        _LAYER,
        *_COLUMNS,
        *(
            Column(name, title, share, f"{name}.conflict_rate", only="terminal")
            for name, title in _BLOCKS.items()
            if getattr(report.model, name)
        ),
    ),
    files=("ffn", "layer", *_UNITS, *_RATES, *_WHOLE),
)


def _blocks(report: ConflictReport) -> Iterator[dict[str, Any]]:
    """Yield, for the model and for each layer, the rates of all blocks together, then of single blocks and pairs of blocks."""
    for row in _layers(report):
        yield {**row, "block": "all"}
        for name, title in _BLOCKS.items():
            if (rates := row[name]) is not None:
                yield {"ffn": row["ffn"], "layer": row["layer"], "block": title, **vars(rates)}


BLOCKS = Table("", _blocks, (_LAYER, _FFN, Column("block", "Block"), *_COLUMNS), title="Layers and blocks")


def _differences(report: ConflictReport) -> Iterator[dict[str, Any]]:
    rates = [{row["layer"]: row["conflict_rate"] for row in _layers(report) if row["ffn"] == ffn} for ffn, _ in sides(report)]
    for row in report.differences:
        yield {"topk": rates[0].get(row.layer), "original": rates[-1].get(row.layer), **vars(row)}


def points(difference: float | None) -> str:
    """Write a difference of two shares in percentage points."""
    return NOTHING if difference is None else f"{rounded(difference, 2, 2):+.2g} points"


def _signed(value: float) -> str:
    return f"{rounded(value, 2):+.2g}"


def _points_between(row: Any) -> str:
    interval = row["interval"]
    return NOTHING if interval is None else f"{rounded(interval.low, 2, 2):+.2g} to {rounded(interval.high, 2, 2):+.2g}"


DIFFERENCES = Table(
    "differences",
    _differences,
    (
        _LAYER,
        Column("topk", "Top-k", share, only="people"),
        Column("original", "Original", share, only="people"),
        Column("conflict_rate", "Difference", points),
        replace(_INTERVAL, cell=_points_between),
        Column("magnitude_similarity", "Similarity", _signed),
        Column("neuron_top_share", "Top sample's share", points),
        Column("neuron_effective_samples", "Effective samples", _signed),
        _HIGH,
    ),
    files=("layer", "conflict_rate", "low", "high", "magnitude_similarity", "neuron_top_share", "neuron_effective_samples"),
    title="Conflict rate, and top-k minus original",
)


def excerpts(report: ConflictReport, longest: int) -> list[str]:
    """Return the beginning of each sample's text, without the words that all texts begin with."""
    texts = [sample.text for sample in report.samples]
    # A common prefix of the first and last text in sorted order is common to all.
    common = min(texts)[: common_prefix(min(texts), max(texts))] if len({*texts}) > 1 else ""
    start = max(common.rfind(" "), common.rfind("\n")) + 1
    return [_cut(text[start:].strip(), longest) for text in texts]


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _samples(report: ConflictReport) -> Iterator[dict[str, Any]]:
    texts = excerpts(report, _EXCERPT)
    for ffn, side in sides(report):
        for row in side.dominance.samples:
            ran = report.samples[row.sample]
            tokens = None if ran.token_ids is None else len(ran.token_ids)
            yield {
                **vars(ran),
                "ffn": ffn,
                "excerpt": texts[row.sample],
                "tokens": tokens,
                "answer_tokens": None if tokens is None or ran.answer_start is None else tokens - ran.answer_start,
                "loss": ran.loss if ffn == report.ffn.variant else None,
                **vars(row),
            }


SAMPLES = Table(
    "samples",
    _samples,
    (
        Column("sample", "Sample", str),
        Column("excerpt", "Text", only="page", width=420, longest=_EXCERPT),
        Column("share", "Share", share),
        *formatted(magnitude, cosine_to_rest="Cosine to the rest", leave_one_out_cosine="Cosine of the mean with and without it"),
        Column("neurons_led", "Units in which it is largest", share),
        *formatted(magnitude, loss="Loss", norm="Norm"),
        Column("tokens", "Tokens", count),
        Column("answer_tokens", "Answer tokens", count, only="people"),
        Column("truncated", "Truncated", cell=lambda row: "yes" if row["truncated"] else "no"),
        Column("row", "Row", str),
        Column("start", "Text", only="terminal", cell=lambda row: " ".join(_cut(row["excerpt"], 60).split())),
    ),
    files=("ffn", *SampleDominance.model_fields, "row", "loss", "tokens", "answer_start", "truncated", "text"),
)
# The table for people has only the gradients of the requested FFN; files have both.
RAN_SAMPLES = replace(SAMPLES, rows=lambda report: [row for row in _samples(report) if row["ffn"] == report.ffn.variant], title="Samples")


def unit_name(row: Any) -> str:
    """Return the name of a unit: layer, expert or projection, and number."""
    within = f", expert {row.expert}" if row.expert is not None else f", {row.block}" if row.block is not None else ""
    return f"Layer {row.layer}{within}, {'neuron' if row.block is None else 'row'} {row.neuron}"


def _neurons(report: ConflictReport) -> Iterator[dict[str, Any]]:
    """Yield the listed units, from the most to the least conflicted."""
    for ffn, side in sides(report):
        if side.neurons is not None:
            for among, rows in (("most", side.neurons.most), ("least", tuple(reversed(side.neurons.least)))):
                yield from ({"ffn": ffn, "among": among, "name": unit_name(row), **vars(row)} for row in rows)


NEURONS = Table(
    "",
    _neurons,
    (
        Column("name", "Neuron", width=190),
        Column("among", "Most or least"),
        _CONFLICT,
        _SIMILARITY,
        _COSINE,
        Column("mean_activation", "Mean |activation|", magnitude),
        Column("top_sample", "Top sample", str),
        Column("top_share", "Its share", share),
        Column("effective_samples", "Effective samples", magnitude),
        Column("pairs", "Pairs", count),
        _FFN,
    ),
    title="Most and least conflicted neurons",
)


_OPTIONAL = ("expert", "block")


def neurons(tables: "Mapping[str, pandas.DataFrame]") -> "pandas.DataFrame":
    """Join the tables of units of each kind of FFN, without columns that would be empty: expert without experts, block for FFN neurons."""
    import pandas

    table = pandas.concat([each.assign(ffn=ffn) for ffn, each in tables.items()], ignore_index=True)
    return table[["ffn", *(name for name in NeuronRow.model_fields if name not in _OPTIONAL or table[name].notna().any())]]


def _unit_columns(report: ConflictReport) -> list[Column]:
    """Return the columns of the listed units in files, without those that would be empty."""
    rows = list(_neurons(report))
    names = [name for name in NeuronRow.model_fields if name not in _OPTIONAL or any(row[name] is not None for row in rows)]
    return [Column(name) for name in ("ffn", *names)]


def _batches(report: ConflictReport) -> Iterator[dict[str, Any]]:
    """Yield the rates between single samples first, then those between batches of growing size."""
    for ffn, side in sides(report):
        model = side.model
        whole = {"whole_conflict_rate": model.whole.conflict_rate, "whole_mean_cosine": model.whole.mean_cosine}
        yield {"ffn": ffn, "batch_size": 1, **vars(model), **whole}
        yield from ({"ffn": ffn, **vars(row)} for row in side.batch_curve)


BATCHES = Table(
    "",
    _batches,
    lambda report: (
        Column("batch_size", "Samples in a batch", count),
        *_ffn(report),
        _CONFLICT,
        _COSINE,
        Column("whole_conflict_rate", "Whole gradients: conflict", share),
        Column("whole_mean_cosine", "Whole gradients: mean cosine", magnitude),
    ),
)


def _each(name: str) -> Any:
    return lambda report: ({"ffn": ffn, **vars(row)} for ffn, side in sides(report) for row in getattr(side, name))


DECILES = Table(
    "deciles",
    _each("deciles"),
    lambda report: (
        Column("decile", "Decile by activation", str),
        *_ffn(report),
        Column("neurons", "Neurons", count),
        Column("mean_activation", "Mean |activation|", magnitude),
        _CONFLICT,
        _INTERVAL,
        _SIMILARITY,
        _HIGH,
    ),
    files=("ffn", *(name for name in DecileRow.model_fields if name != "interval"), "low", "high"),
)


def _weights(report: ConflictReport) -> Iterator[dict[str, Any]]:
    for ffn, side in sides(report):
        if side.weights is not None:
            yield {"ffn": ffn, "layer": None, **vars(side.weights)}
            yield from ({"ffn": ffn, **vars(row)} for row in side.weights.layers)


WEIGHTS = Table(
    "weights",
    _weights,
    lambda report: (
        _LAYER,
        *_ffn(report),
        Column("weights", "Weights", count),
        *formatted(share, conflict="Opposite signs", agreement="Agreement"),
        *formatted(magnitude, snr="Signal to noise", noise_floor="Without a signal", snr_p50="Median weight", snr_p90="90th percentile"),
    ),
    files=("ffn", *LayerWeights.model_fields),
)


def _cosines(report: ConflictReport) -> Iterator[dict[str, Any]]:
    """Yield each pair of samples once, for the whole model only: the cosines of layers are in the JSON report."""
    for ffn, side in sides(report):
        for sample, row in enumerate(side.cosines.model):
            for other, cosine in enumerate(row[:sample]):
                yield {"ffn": ffn, "layer": None, "sample": sample, "other": other, "cosine": cosine}


def _published(report: ConflictReport) -> Iterator[dict[str, Any]]:
    run = {row.layer: row for row in report.layers}
    yield from ({**vars(row), "run": run.get(row.layer)} for row in published())


def _published_columns(report: ConflictReport) -> Iterator[Column]:
    yield Column("layer", "Layer", str)
    for key, title, text in (("conflict_rate", "Rate as published", share), ("magnitude_similarity", "Similarity as published", magnitude)):
        yield Column(key, title, text)
        if comparable(report):
            yield Column(f"{key}_historic", "This run", text, f"run.{key}_historic")


# The published figures, next to those of this run if it has the published setting.
PUBLISHED = Table("", _published, lambda report: tuple(_published_columns(report)))
TABLES = (
    Table("summary", _summary),
    LAYERS,
    Table(
        "blocks",
        lambda report: (row for row in _blocks(report) if row["block"] != "all"),
        [column for column in _COLUMNS if column.key not in (*_UNITS, *_WHOLE)],
        files=("ffn", "layer", "block", *_RATES),
    ),
    SAMPLES,
    Table("batches", _each("batch_curve"), files=("ffn", *BatchRow.model_fields)),
    DECILES,
    WEIGHTS,
    Table("cosines", _cosines, files=("ffn", "layer", "sample", "other", "cosine")),
    Table("neurons", _neurons, _unit_columns),
    DIFFERENCES,
    Table("published", lambda report: published() if comparable(report) else (), files=PublishedRow.model_fields),
)
