"""The report of gradient conflict, and its progress. Field names are the JSON contract; fields may be added, never renamed.

A *unit* is one neuron of an FFN (its gate row, up row and down column; without a gate its fc-in row, here ``up``, and fc-out column, here
``down``; in a mixture of experts one neuron of one expert) or one row of an attention projection (``q``, ``k``, ``v``, ``o``;
``g``, ``q_a``, ``q_b``, ``kv_a``, ``kv_b`` as of `ffn.Attention`). Its gradient in sample s is g_s; its Gram matrix is (g_s . g_r).
A *pair* is two distinct samples whose gradients are not zero, not shorter than the floor and longer than epsilon. Shares are numbers in
[0, 1]; a missing number is null. Samples and layers are counted from 0.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from pydantic import PrivateAttr

from analyzers.base import CheckpointFacts, Progress, Report
from analyzers.gradient_conflict.request import ConflictRequest, Selection
from analyzers.gradient_conflict.summaries import Measurement
from analyzers.language_models.prompt_templates import Template
from analyzers.records import Interval, Record

if TYPE_CHECKING:
    import pandas

    from analyzers.gradient_conflict.neurons import NeuronTable


BATCHES = "batches"
"""Name of the data source for batches of the caller."""


class LayerRate(Record):
    """The conflict rate of one layer, as in `Rates`."""

    layer: int
    conflict_rate: float | None


class MeasuredProgress(Progress):
    """Progress in layers, with the rates of the layers measured so far in the present pass, the last layer of the model first."""

    rates: tuple[LayerRate, ...]


class Sample(Record):
    """One sample as it was run, with the tokens from which the report can be recomputed.

    answer_start: index of the answer's first token; truncated: whether the sample was longer; loss: mean or sum over its answer tokens, as
    requested, with the requested FFN; row: row of the data, counted from 0 through all files (null in reports of version 1). A batch of the
    caller has only a loss and a row.
    """

    text: str
    token_ids: tuple[int, ...] | None
    answer_start: int | None
    truncated: bool
    loss: float
    row: int | None = None


class DataFacts(Record):
    """The source of the samples. commit: that of a Hub dataset, or the hash of a file or of given pairs; null for the built-in text and for
    "batches" of the caller, which also have no tokens.

    tokens, answer_tokens: of all samples together. rows: number of rows that the samples were chosen from; null if the first rows were
    taken and the others not counted. template: the template used, never "auto" (null in reports of version 1).
    """

    source: str
    commit: str | None
    samples: int
    truncated: int
    tokens: int | None
    answer_tokens: int | None
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
    """The measured units. blocks: the parts of a unit's gradient; neurons: number of units in all layers; experts: number in a layer, null
    without experts; topk: the requested top-k FFN, null for the original.
    """

    variant: Literal["original", "topk"]
    unit: Literal["ffn", "attention"]
    blocks: tuple[str, ...]
    layers: int
    neurons: int
    experts: int | None
    topk: TopK | None


class Difference(Record):
    """Top-k minus original, in one layer or in the model (null), with the paired 95 % jackknife interval of the rate's difference.

    neuron_top_share, neuron_effective_samples: differences of these fields of `ModelRow` (null in reports of version 1).
    """

    layer: int | None
    conflict_rate: float | None
    interval: Interval | None
    magnitude_similarity: float | None
    neuron_top_share: float | None = None
    neuron_effective_samples: float | None = None


class Work(Record):
    """The work for the Gram matrices. flops, bytes: of the matrix products; direct: number of blocks computed; tokens: 0, except in earlier
    reports, for which some blocks were computed from products between tokens.
    """

    flops: int
    bytes: int
    direct: int
    tokens: int


class ConflictReport(Measurement, Report):
    """The conflict between samples in the same units, for the requested FFN; a top-k run also has ``original`` and ``differences``.

    tau: error bound of a cosine in the arithmetic used (``dtype``). attention: the implementation that ran, null if it is not known. ffn:
    the measured units.
    """

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
    original: Measurement | None
    differences: tuple[Difference, ...]
    work: Work
    statement: str
    notes: tuple[str, ...]

    _neurons: "Mapping[str, NeuronTable]" = PrivateAttr(default_factory=dict)

    def keep_neurons(self, neurons: "Mapping[str, NeuronTable]") -> None:
        """Store the rows of all units, by kind of FFN, for `full_tables`. Not part of the JSON."""
        self._neurons = neurons

    def more_findings(self) -> list[str]:
        """Return the statement without its first sentence, which repeats the headline in more words."""
        return super().more_findings()[1:]

    def full_tables(self) -> "dict[str, pandas.DataFrame]":
        """Return `tables`, where ``neurons`` has a row for every unit if the command line's analysis made this object."""
        tables = self.tables()
        if self._neurons:
            tables["neurons"] = self._module("columns").neurons({ffn: table.frame() for ffn, table in self._neurons.items()})
        return tables
