"""The request and the report of gradient conflict. Field names are the JSON contract; fields may be added, never renamed.

A *unit* is one neuron of an FFN (its gate row, up row and down column; without a gate its fc-in row, here ``up``, and fc-out column, here
``down``; in a mixture of experts one neuron of one expert) or one row of an attention projection (``q``, ``k``, ``v``, ``o``). Its gradient
in sample s is g_s; its Gram matrix is (g_s . g_r). A *pair* is two distinct samples whose gradients are neither zero nor shorter than the
floor. Shares are numbers in [0, 1]; a missing number is null (nothing to take it of). Samples and layers are counted from 0.
"""

import json
import re
from typing import TYPE_CHECKING, Literal

from pydantic import Field, field_validator, model_validator

from analyzers import limits
from analyzers.base import CheckpointFacts, Data, Interval, Progress, Report, Request

if TYPE_CHECKING:
    import pandas

Selection = Literal["gate", "up", "abs-up", "product", "abs-product"]
FFN_BLOCKS = ("gate", "up", "down")
ATTENTION_BLOCKS = ("q", "k", "v", "o")


class TextPair(Data):
    """One instruction with its answer. ``input`` is what the instruction is about, and may be empty."""

    instruction: str = Field(min_length=1, max_length=limits.PAIR_CHARACTERS)
    input: str = Field(default="", max_length=limits.PAIR_CHARACTERS)
    output: str = Field(min_length=1, max_length=limits.PAIR_CHARACTERS)


class ConflictRequest(Request):
    """Which model, on what text, and which gradients.

    model: a reference (``org/name``, ``name``, either with ``@revision``; ``sample:NAME``; a local path where allowed).
    data: "builtin", the id of a Hub dataset, or where local paths are allowed a file of jsonl; pairs: given here instead.
    samples: how many, the first ones. max_length: tokens after which a sample is cut off.
    loss: of a sample, the "mean" or the "sum" over its answer tokens.
    gamma: a pair conflicts where its cosine is smaller. floor: smallest norm that counts, in medians of the norms of all the layer's units
    that are not 0.
    unit: "ffn" neurons or rows of "attention" projections. ffn: "topk" measures the original and the FFN in which each token keeps only
    its first neurons by ``select``: the share ``topk`` of the width or, if ``topk_share`` is given, as few as hold that share of the sum
    of |score|; in ``topk_layers``: "last", "all", one number or a range "A-B" (both included).
    weights: also look at each weight. checkpointing: recompute activations in the backward pass: less memory, more time.
    seed: of halves and batches of samples.
    """

    model: str
    data: str = Field(default="builtin", min_length=1, max_length=limits.REFERENCE_LENGTH)
    pairs: tuple[TextPair, ...] = ()
    samples: int = Field(default=50, strict=True)
    max_length: int = Field(default=512, strict=True)
    loss: Literal["mean", "sum"] = "mean"
    gamma: float = Field(default=0.0, ge=-1, le=1)
    floor: float = Field(default=0.0, ge=0, le=1e6)
    unit: Literal["ffn", "attention"] = "ffn"
    ffn: Literal["original", "topk"] = "original"
    topk: float = Field(default=0.125, gt=0, le=1)
    topk_share: float | None = Field(default=None, gt=0, le=1)
    topk_layers: str = "last"
    select: Selection = "gate"
    weights: bool = True
    attention: Literal["sdpa", "eager"] = "sdpa"
    checkpointing: bool = False
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    seed: int = Field(default=0, ge=0, lt=2**63, strict=True)

    @field_validator("samples")
    @classmethod
    def _samples_in_range(cls, samples: int) -> int:
        if not 2 <= samples <= limits.CONFLICT_SAMPLES:
            raise ValueError(
                f"conflict is between samples: from 2 to {limits.CONFLICT_SAMPLES} of them (MANTISSA_CONFLICT_SAMPLES), not {samples:,}"
            )
        return samples

    @field_validator("max_length")
    @classmethod
    def _length_in_range(cls, length: int) -> int:
        if not 8 <= length <= limits.CONFLICT_TOKENS:
            raise ValueError(f"a sample may have 8 to {limits.CONFLICT_TOKENS:,} tokens (MANTISSA_CONFLICT_TOKENS), not {length:,}")
        return length

    @field_validator("pairs")
    @classmethod
    def _not_too_many_pairs(cls, pairs: tuple[TextPair, ...]) -> tuple[TextPair, ...]:
        if len(pairs) == 1 or len(pairs) > limits.CONFLICT_SAMPLES:
            raise ValueError(f"conflict is between samples: give from 2 to {limits.CONFLICT_SAMPLES} pairs, not {len(pairs):,}")
        return pairs

    @field_validator("topk_layers")
    @classmethod
    def _known_layers(cls, layers: str) -> str:
        if not re.fullmatch(r"last|all|[0-9]{1,4}|[0-9]{1,4}-[0-9]{1,4}", layers):
            raise ValueError(f"topk_layers must be last, all, a number or a range such as 0-3, not {json.dumps(layers[:40])}")
        return layers

    @model_validator(mode="after")
    def _fits_together(self) -> "ConflictRequest":
        if self.pairs and self.data != "builtin":
            raise ValueError("give either pairs or the name of a dataset, not both")
        if self.ffn == "topk" and self.unit == "attention":
            raise ValueError("a top-k FFN is measured on its neurons: choose the unit ffn")
        if "-" in self.topk_layers and int(self.topk_layers.split("-")[0]) > int(self.topk_layers.split("-")[1]):
            raise ValueError(f"the range of layers {self.topk_layers} ends before it begins")
        return self


class LayerRate(Data):
    """The conflict rate of one layer, as in `Rates`."""

    layer: int
    conflict_rate: float | None


class MeasuredProgress(Progress):
    """Progress in layers, with the rates of those measured so far of the FFN at hand, the last layer of the model first."""

    rates: tuple[LayerRate, ...]


class Sample(Data):
    """One sample as it was run: anyone can recompute the report from the tokens. answer_start: index of the answer's first token;
    truncated: it was longer; loss: mean over its answer tokens, or their sum if that was asked for, of the FFN asked for.
    """

    text: str
    token_ids: tuple[int, ...]
    answer_start: int
    truncated: bool
    loss: float


class DataFacts(Data):
    """Where the samples come from. commit: of a Hub dataset, the hash of a file or of given pairs; null for the built-in text.

    tokens, answer_tokens: of all samples together.
    """

    source: str
    commit: str | None
    samples: int
    truncated: int
    tokens: int
    answer_tokens: int


class TopK(Data):
    """A top-k FFN. layers: those converted; kept: mean share of the neurons a token keeps in them; of
    the tokens of each sample but the last."""

    select: Selection
    share_of_width: float | None
    share_of_sum: float | None
    layers: tuple[int, ...]
    kept: float


class Units(Data):
    """What was measured. blocks: the parts of a unit's gradient; neurons: units in all layers; experts: of a layer, null without.
    topk: of the FFN asked for, null for the original.
    """

    variant: Literal["original", "topk"]
    unit: Literal["ffn", "attention"]
    blocks: tuple[str, ...]
    layers: int
    neurons: int
    experts: int | None
    topk: TopK | None


class Undecided(Data):
    """What the arithmetic leaves open: the share of pairs with a cosine below gamma - tau (``low``) and below gamma + tau (``high``); the
    rate lies between. share: high - low.
    """

    low: float | None
    high: float | None
    share: float | None


class Rates(Data):
    """Over all units and their pairs together; interval: 95 %, by a delete-one jackknife over samples.

    pairs: (unit, pair of samples) counted. conflict_rate: share with cos < gamma. conflict_rate_historic: share of all S x S ordered
    pairs, each sample with itself included, with cos < 0. magnitude_similarity: mean of 2|g||h| / (|g|^2 + |h|^2);
    magnitude_similarity_historic: over all S x S, null where that is 0/0 for any. mean_cosine: over the pairs.
    """

    pairs: int
    conflict_rate: float | None
    interval: Interval | None
    undecided: Undecided
    conflict_rate_historic: float | None
    magnitude_similarity: float | None
    magnitude_interval: Interval | None
    magnitude_similarity_historic: float | None
    mean_cosine: float | None


class Whole(Data):
    """All units of a layer, or of the model, as one gradient per sample. noise_scale: tr(covariance) / |mean gradient|^2, both unbiased
    (McCandlish et al., arXiv 1812.06162): the batch size at which noise and signal are equal; null where the signal is not above 0.
    top_share: of sum |g_s|^2, the largest sample's; effective_samples: (sum |g|^2)^2 / sum |g|^4; diversity: sum |g_s|^2 / |sum g_s|^2
    (Yin et al., arXiv 1706.05699).
    """

    pairs: int
    conflict_rate: float | None
    interval: Interval | None
    undecided: Undecided
    magnitude_similarity: float | None
    mean_cosine: float | None
    noise_scale: float | None
    top_share: float | None
    effective_samples: float | None
    diversity: float | None


class ModelRow(Rates):
    """All units of all layers, and each block of their gradients alone. ``neurons``: how many units. whole: all of it as one gradient.

    dead: units whose gradient is zero in every sample.
    """

    neurons: int
    dead: int
    gate: Rates | None = None
    up: Rates | None = None
    down: Rates | None = None
    q: Rates | None = None
    k: Rates | None = None
    v: Rates | None = None
    o: Rates | None = None
    whole: Whole


class LayerRow(ModelRow):
    """The same of one layer."""

    layer: int


class SampleDominance(Data):
    """One sample in the whole model's gradient. norm: |g_s|; share: of sum |g|^2; leave_one_out_cosine: of the mean gradient with the
    mean without this sample; cosine_to_rest: of g_s with the mean of the others; neurons_led: share of the units in which its norm is the
    largest.
    """

    sample: int
    norm: float
    share: float | None
    leave_one_out_cosine: float | None
    cosine_to_rest: float | None
    neurons_led: float | None


class Dominance(Data):
    """Does one sample dominate? Of the whole model's gradient as in `Whole`; neuron_top_share, neuron_effective_samples: means over units.

    top_sample: with the largest share.
    """

    top_sample: int | None
    top_share: float | None
    effective_samples: float | None
    diversity: float | None
    neuron_top_share: float | None
    neuron_effective_samples: float | None
    samples: tuple[SampleDominance, ...]


class BatchRow(Data):
    """Samples averaged in random batches of ``batch_size``, ``batches`` in each of ``draws`` draws; batches of a draw share no sample.

    Rates between batches as in `Rates` (units) and `Whole` (whole model).
    """

    batch_size: int
    batches: int
    draws: int
    conflict_rate: float | None
    mean_cosine: float | None
    whole_conflict_rate: float | None
    whole_mean_cosine: float | None


class DecileRow(Data):
    """A tenth of the neurons of every layer, by mean |activation| on one half of the samples; rates are between the other half's.

    decile: 1 has the least active. mean_activation: over those neurons and the half's tokens, but for the last of each sample, which
    predicts nothing.
    """

    decile: int
    neurons: int
    mean_activation: float | None
    pairs: int
    conflict_rate: float | None
    interval: Interval | None
    magnitude_similarity: float | None


class WeightRates(Data):
    """Weight by weight: over samples N+ of whose gradients are positive and N- negative there.

    weights: how many; counted: with N+ + N- >= 2. conflict: mean over those of N+ N- / C(N+ + N-, 2), the share of pairs of opposite sign;
    agreement: mean of |N+ - N-| / (N+ + N-). snr: sum over weights of mean^2 / sum of variance (S - 1 in the denominator);
    snr_p10, snr_p50, snr_p90: percentiles over weights of mean^2 / variance, within 3 %; noise_floor: 1/S, what snr is expected to be
    without any common signal.
    """

    weights: int
    counted: int
    conflict: float | None
    agreement: float | None
    snr: float | None
    snr_p10: float | None
    snr_p50: float | None
    snr_p90: float | None
    noise_floor: float


class LayerWeights(WeightRates):
    """The weights of one layer's units."""

    layer: int


class Weights(WeightRates):
    """All layers together, and each."""

    layers: tuple[LayerWeights, ...]


class LayerCosines(Data):
    """(S, S) cosines between whole-layer gradients; null where a sample's gradient is zero."""

    layer: int
    values: tuple[tuple[float | None, ...], ...]


class Cosines(Data):
    """Between samples: of the whole model's gradients (S, S), and per layer, empty where that would be more than
    `limits.REPORT_COSINES` numbers. To six digits after the point.
    """

    model: tuple[tuple[float | None, ...], ...]
    layers: tuple[LayerCosines, ...]


class Measurement(Data):
    """The answers for one kind of FFN. layers: from the last to the first. deciles: empty for attention, and with fewer than 4 samples;
    weights: null where they were not asked for.
    """

    layers: tuple[LayerRow, ...]
    model: ModelRow
    dominance: Dominance
    batch_curve: tuple[BatchRow, ...]
    deciles: tuple[DecileRow, ...]
    weights: Weights | None
    cosines: Cosines


class Difference(Data):
    """Top-k less original, in one layer or (null) the model, with the paired 95 % jackknife interval of the rate's."""

    layer: int | None
    conflict_rate: float | None
    interval: Interval | None
    magnitude_similarity: float | None


class Work(Data):
    """What the Gram matrices took. flops, bytes: of the matrix products that were run, and what they read and wrote; direct, tokens: blocks
    of layers that took each route (per-sample gradients, or products between tokens).
    """

    flops: int
    bytes: int
    direct: int
    tokens: int


class ConflictReport(Measurement, Report):
    """What samples do to the same units. The measurement is of the FFN asked for; beside top-k stand ``original`` and ``differences``.

    tau: how far a cosine may be off in the arithmetic that was used (``dtype``). attention: the implementation that ran. ffn: what was
    measured.
    """

    analyzer: Literal["conflict"] = "conflict"
    schema_version: int = 1
    request: ConflictRequest
    checkpoint: CheckpointFacts
    data: DataFacts
    ffn: Units
    dtype: str
    attention: str
    tau: float
    samples: tuple[Sample, ...]
    original: Measurement | None
    differences: tuple[Difference, ...]
    work: Work
    statement: str
    notes: tuple[str, ...]

    def subject(self) -> dict[str, str]:
        """The model."""
        return {"model": self.checkpoint.ref}

    def tables(self) -> "dict[str, pandas.DataFrame]":
        """``summary`` (one row), ``layers``, ``blocks``, ``samples``, ``batches``, ``deciles``, ``weights``, ``cosines``, ``differences``,
        and ``published`` beside a run of the published setting's model. A column ``ffn`` tells original and top-k apart.
        """
        from analyzers.gradient_conflict.tables import tables

        return tables(self)
