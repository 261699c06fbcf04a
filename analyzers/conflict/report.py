"""The report of gradient conflict. Field names are the JSON contract.

A *unit* is one neuron of an FFN (its gate row, up row and down column; without a gate its fc-in row, here ``up``, and fc-out column, here
``down``; in a mixture of experts one neuron of one expert). Its gradient in sample s is g_s; its Gram matrix is (g_s . g_r).
A *pair* is two distinct samples whose gradients are not zero. Shares are numbers in [0, 1]; a missing number is
null. Samples and layers are counted from 0.
"""

from collections.abc import Callable, Iterator
from typing import Annotated, Any, ClassVar, Literal

from analyzers.conflict.request import ConflictRequest, Selection
from analyzers.conflict.rows import Measurement, ModelRow, Rates, SampleDominance, UnitRates, Variant, WeightRates, layer_name
from analyzers.core.columns import Column, Table
from analyzers.core.formatting import count
from analyzers.core.records import Record
from analyzers.core.report import CheckpointFacts, Report
from analyzers.core.rows import Shown, columns
from analyzers.language_models.prompts import Template, common_prefix

BATCHES = "batches"
"""Name of the data source for batches of the caller."""
_EXCERPT = 160


class Sample(Record):
    """One sample as it was run, with the tokens from which the report can be recomputed.

    answer_start: index of the answer's first token; truncated: whether the sample was longer; loss: mean or sum over its answer tokens, as
    requested, with the requested FFN; row: row of the data, counted from 0 through all files. A batch of the caller has only a loss and a
    row.
    """

    text: str = ""
    token_ids: tuple[int, ...] | None = None
    answer_start: int | None = None
    truncated: Annotated[bool, Shown("Truncated", "yes")] = False
    loss: Annotated[float, Shown("Loss", "magnitude")]
    row: Annotated[int | None, Shown("Row", "count")]


class DataFacts(Record):
    """The source of the samples. commit: that of a Hub dataset, or the hash of a file; null for the built-in text and for
    "batches" of the caller, which also have no tokens.

    tokens, answer_tokens: of all samples together. rows: number of rows that the samples were chosen from; null if the first rows were
    taken and the others not counted. template: the template used, never "auto".
    """

    source: str
    commit: str | None = None
    samples: int
    truncated: int = 0
    tokens: int | None = None
    answer_tokens: int | None = None
    rows: int | None = None
    template: Template | None = None


class TopK(Record):
    """A top-k FFN. layers: the converted layers; kept: mean share of their neurons that a token keeps, over all tokens but the last of each
    sample.
    """

    select: Selection
    share_of_width: float | None
    share_of_sum: float | None
    layers: tuple[int, ...]
    kept: float


class Units(Record):
    """The measured units. blocks: the parts of a unit's gradient; experts: number in a layer, null without experts; topk: the requested
    top-k FFN, null for the original.
    """

    variant: Variant
    blocks: tuple[str, ...]
    experts: int | None
    topk: TopK | None


def excerpts(made: "ConflictReport", longest: int) -> list[str]:
    """Return the beginning of each sample's text, without the words that all texts begin with."""
    texts = [sample.text for sample in made.samples]
    # A common prefix of the first and last text in sorted order is common to all.
    common = min(texts)[: common_prefix(min(texts), max(texts))] if len({*texts}) > 1 else ""
    start = max(common.rfind(" "), common.rfind("\n")) + 1
    short = [" ".join(text[start:].split()) for text in texts]
    return [text if len(text) <= longest else f"{text[: longest - 1]}…" for text in short]


def _layer_rows(made: "ConflictReport") -> Iterator[tuple[dict[str, Any], ModelRow]]:
    """Yield where a row belongs, and the row: the model, then its layers in order."""
    if made.original is not None:
        yield {"layer": None, "ffn": "original"}, made.original
    yield {"layer": None, "ffn": made.ffn.variant}, made.model
    yield from (({"layer": row.layer, "ffn": row.ffn}, row) for row in made.layers)


def _layers(made: "ConflictReport") -> Iterator[dict[str, Any]]:
    yield from (vars(row) | where for where, row in _layer_rows(made))


def _blocks(made: "ConflictReport") -> Iterator[dict[str, Any]]:
    yield from (where | {"block": name} | vars(rates) for where, row in _layer_rows(made) for name, rates in row.blocks.items())


def _samples(made: "ConflictReport") -> Iterator[dict[str, Any]]:
    texts = excerpts(made, _EXCERPT)
    for row in made.dominance.samples:
        ran = made.samples[row.sample]
        tokens = None if ran.token_ids is None else len(ran.token_ids)
        yield vars(ran) | vars(row) | {"excerpt": texts[row.sample], "tokens": tokens}


def _weights(made: "ConflictReport") -> Iterator[dict[str, Any]]:
    if made.weights is not None:
        yield {"layer": None, "ffn": made.ffn.variant, **vars(made.weights)}
        yield from map(vars, made.weights.layers)


def _cosines(made: "ConflictReport") -> Iterator[dict[str, Any]]:
    """Yield each pair of samples once, for the whole model only: the cosines of layers are in the JSON report."""
    for sample, row in enumerate(made.cosines.model):
        yield from ({"sample": sample, "other": other, "cosine": cosine} for other, cosine in enumerate(row[:sample]))


def _by_layer(*further: Column) -> Callable[["ConflictReport | None"], list[Column]]:
    """Return the columns of a table by layer; the FFN is shown where there are two, and on the page, whose tables are the same for all."""
    layer = Column("layer", "Layer", str, cell=lambda row: layer_name(row["layer"]))
    return lambda made: [layer, Column("ffn", "" if made is not None and made.original is None else "FFN"), *further]


class ConflictReport(Measurement, Report):
    """The conflict between samples in the same units. tau: error bound of a cosine in the arithmetic used (``dtype``). attention: the
    implementation that ran, null if it is not known. ffn: the measured units.
    """

    DERIVED: ClassVar[tuple[Table, ...]] = (
        Table("layers", _layers, _by_layer(*columns(UnitRates)), title="Layers"),
        Table("blocks", _blocks, _by_layer(Column("block", "Block"), *columns(Rates)), title="Blocks of the gradients"),
        Table(
            "samples",
            _samples,
            (
                *columns(SampleDominance),
                Column("tokens", "Tokens", count),
                *(column for column in columns(Sample) if column.key != "token_ids"),
                Column("excerpt", "Text", only="people", longest=_EXCERPT),
            ),
            title="Samples",
        ),
        Table("weights", _weights, _by_layer(*columns(WeightRates)), title="Individual weights"),
        Table("cosines", _cosines, (Column("sample"), Column("other"), Column("cosine"))),
    )

    analyzer: Literal["conflict"] = "conflict"
    schema_version: int = 1
    request: ConflictRequest
    checkpoint: CheckpointFacts
    data: DataFacts
    ffn: Units
    dtype: str
    attention: str | None
    tau: float
    samples: tuple[Sample, ...]
