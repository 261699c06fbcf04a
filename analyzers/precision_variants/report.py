"""The request, the progress and the report of precision variants. Field names are the JSON contract; fields may be added, never renamed.

Layers are counted from 0; layer -1 is what enters the first of them (the embedding output), and layer L, of L layers, stands for what
follows the last (final norm, head). x is a variant's value, ref the reference's; sums and means run over all elements of all sequences at
which both are finite. Relative errors are plain ratios (0.01 is one per cent), log-probabilities and losses are in nats, headroom in bits
(powers of two). A missing number is null: nothing finite to take it of, or a division by zero.
"""

from typing import TYPE_CHECKING, Literal

from pydantic import Field, field_validator, model_validator

from analyzers import limits
from analyzers.base import CheckpointFacts, Data, Progress, Report, Request
from analyzers.precision_variants.variants import DEFAULT, Settings, parse_variant

if TYPE_CHECKING:
    import pandas

Kind = Literal["hidden", "hidden_grad", "logits", "logits_grad", "parameter_grad", "logprob", "loss", "inside", "inside_grad"]


ADVANTAGE = 1_000_000
"""The largest advantage of a sequence: larger ones would overflow gradients, whatever the weights."""


class PrecisionRequest(Request):
    """Which model, run in which ways, on what.

    model: a reference (``org/name``, ``name``, either with ``@revision``; ``sample:NAME``; a local path where allowed).
    variants: each the name of a preset or ``name: key=value,...`` (see `variants.parse_variant`).
    data: "builtin", "random" (tokens drawn evenly from the vocabulary), the id of a Hub dataset, or where local paths are allowed a file
    of instruction data (.jsonl, .json, .parquet) or plain text (.txt); text: given here instead.
    sequences, sequence_length: the text is cut into so many rows of so many tokens, all of which but the first are predicted.
    random_init: fresh weights as the architecture draws them, instead of those of the checkpoint.
    loss: "ce", the mean cross-entropy of the tokens, or "gspo", the sequence-level policy gradient of Group Sequence Policy Optimization
    (arXiv 2507.18071, without its clipping): the mean over sequences of -A exp(mean over tokens of log p - log p_ref), p_ref of the
    reference. advantages: A of each sequence; drawn from a normal distribution where there are none.
    pre_rounded: compare each variant with a reference whose weights were rounded as the variant's are, so that only the rounding of
    computation is left. inside: also what the modules within each layer give. attention: of the reference.
    seed: of random weights, tokens and advantages.
    """

    model: str
    variants: tuple[str, ...] = DEFAULT
    data: str = Field(default="builtin", min_length=1, max_length=limits.REFERENCE_LENGTH)
    text: str | None = Field(default=None, max_length=limits.PRECISION_CHARACTERS)
    sequences: int = Field(default=2, strict=True)
    sequence_length: int = Field(default=512, strict=True)
    random_init: bool = False
    loss: Literal["ce", "gspo"] = "ce"
    advantages: tuple[float, ...] = ()
    pre_rounded: bool = False
    inside: bool = False
    attention: Literal["sdpa", "eager"] = "sdpa"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    seed: int = Field(default=0, ge=0, lt=2**63, strict=True)

    @field_validator("text")
    @classmethod
    def _not_blank(cls, text: str | None) -> str | None:
        return text if text is not None and text.strip() else None

    @field_validator("sequences")
    @classmethod
    def _sequences_in_range(cls, sequences: int) -> int:
        if not 1 <= sequences <= limits.PRECISION_SEQUENCES:
            raise ValueError(f"from 1 to {limits.PRECISION_SEQUENCES} sequences (MANTISSA_PRECISION_SEQUENCES), not {sequences:,}")
        return sequences

    @field_validator("sequence_length")
    @classmethod
    def _length_in_range(cls, length: int) -> int:
        if not 2 <= length <= limits.PRECISION_TOKENS:
            raise ValueError(f"a sequence may have 2 to {limits.PRECISION_TOKENS:,} tokens (MANTISSA_PRECISION_TOKENS), not {length:,}")
        return length

    @model_validator(mode="after")
    def _fits_together(self) -> "PrecisionRequest":
        if self.text is not None and self.data != "builtin":
            raise ValueError("give either a text or the name of data, not both")
        if self.advantages and self.loss != "gspo":
            raise ValueError("advantages belong to the loss gspo")
        if self.advantages and len(self.advantages) != self.sequences:
            raise ValueError(f"each sequence needs one advantage: there are {self.sequences} and {len(self.advantages)}")
        if any(abs(each) > ADVANTAGE for each in self.advantages):
            raise ValueError(f"advantages may lie between {-ADVANTAGE:,} and {ADVANTAGE:,}")
        if self.advantages and not any(self.advantages):
            raise ValueError("advantages that are all 0 leave no gradient to compare")
        return self

    @model_validator(mode="after")
    def _variants_parse(self) -> "PrecisionRequest":
        if not 1 <= len(self.variants) <= limits.PRECISION_VARIANTS:
            most = f"{limits.PRECISION_VARIANTS} variants can be run at once (MANTISSA_PRECISION_VARIANTS)"
            raise ValueError(f"from 1 to {most}, not {len(self.variants):,}")
        names = [parse_variant(text)[0] for text in self.variants]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"there are two variants named {twice}: give one of them another name")
        return self

    def settings(self) -> dict[str, Settings]:
        """Name -> settings, in the order asked for."""
        return dict(parse_variant(text) for text in self.variants)


class VariantProgress(Progress):
    """Progress within one run of the model. variant: its name, "reference" for the reference; ``unit`` is "layers", two per layer and run
    (forward, backward), so that ``done`` never falls and reaches ``total`` at the end. finished: this variant is done.
    """

    variant: str
    finished: bool = False


class TensorError(Data):
    """How far one tensor of a variant is from the reference's.

    name: "embeddings", "layers.3", "logits", the parameter, or the module inside a layer; kind: "hidden" is what decoder layer ``layer``
    gives (-1: the embedding output), "hidden_grad" the loss gradient with respect to it, "logits", "logits_grad", "parameter_grad",
    "logprob" of the chosen tokens, "loss" (of each token for ce, of each sequence for gspo), "inside" and "inside_grad" (on request).
    layer: null for what belongs to none.
    rms = sqrt(mean (x - ref)^2); rms_rel = rms / rms(ref), with nothing added to the denominator, 0 where rms is 0; low, high: the
    smallest and largest rms_rel of a single sequence, null where sequences are summed up (parameter gradients) or there is one.
    max = max |x - ref|; bias = mean (x - ref). x fitted as intercept + slope ref by least squares: slope, correlation, and residual, the
    rms of what the fit leaves; null where ref is constant. elements: all; nonfinite: those of x that are NaN or infinite.
    ref_rms = rms(ref).
    """

    name: str
    kind: Kind
    layer: int | None
    rms_rel: float | None
    low: float | None
    high: float | None
    rms: float | None
    max: float | None
    bias: float | None
    slope: float | None
    intercept: float | None
    correlation: float | None
    residual: float | None
    elements: int
    nonfinite: int
    ref_rms: float | None


class ParameterKind(Data):
    """Gradients of one kind of parameter, all layers together. kind: the parameter's name within its layer ("mlp.up_proj.weight"), or its
    whole name outside of them. rms_rel: sqrt(sum of (x - ref)^2 / sum of ref^2) over all; worst: the largest of one tensor, ``worst_name``.
    """

    kind: str
    tensors: int
    elements: int
    rms_rel: float | None
    worst: float | None
    worst_name: str | None
    nonfinite: int


class Summary(Data):
    """The variant in a row: rms_rel of single tensors. Forward: embeddings (hidden, layer -1), mid_median and mid_max over hidden layers
    but the first (-1) and the last, logits, head (the loss of each token; for gspo of each sequence). Backward: head_bw (hidden_grad of the
    last layer: the gradient at the final norm's input), logits_bw, mid_median_bw and mid_max_bw over the same layers, first_layer_bw
    (hidden_grad, layer -1: what the first layer hands on). mid_max_layer, mid_max_bw_layer: where the maximum is. parameters_bw: of all
    parameter gradients together. logprob_mean, logprob_max: mean and largest |log p - log p_ref| of the chosen tokens, in nats.
    """

    embeddings: float | None
    mid_median: float | None
    mid_max: float | None
    mid_max_layer: int | None
    logits: float | None
    head: float | None
    head_bw: float | None
    logits_bw: float | None
    mid_median_bw: float | None
    mid_max_bw: float | None
    mid_max_bw_layer: int | None
    first_layer_bw: float | None
    parameters_bw: float | None
    logprob_mean: float | None
    logprob_max: float | None


class Logprobs(Data):
    """Log-probabilities of the chosen tokens. mean, max: of |d|, d = log p - log p_ref, in nats; bias: mean of d; slope, correlation: of
    log p on log p_ref. The importance ratio that a policy gradient would see between the two: of a token exp(d), ``ratio_mean`` the mean of
    |exp(d) - 1| and ``ratio_max`` the largest; of a sequence exp(mean of d), ``sequence_ratio_mean``, ``sequence_ratio_max``;
    outside_clip: the share of sequences whose ratio GSPO would clip (outside 1 - 3e-4 to 1 + 4e-4, the published range).
    """

    tokens: int
    mean: float | None
    max: float | None
    bias: float | None
    slope: float | None
    correlation: float | None
    ratio_mean: float | None
    ratio_max: float | None
    sequence_ratio_mean: float | None
    sequence_ratio_max: float | None
    outside_clip: float | None


class Headroom(Data):
    """How far a layer is from fp16's largest number: forward = log2(65504 / forward_max), backward and weights alike; below 0 it overflows.

    forward_max: largest |x| among what the layer gives and what the modules within it give, ``forward_at`` names it; backward_max: largest
    |gradient| with respect to any of these and to the layer's parameters, of the loss itself (a loss scale S costs log2(S) bits);
    weights_max: largest |weight|. Over finite numbers; null where all are 0 or none is finite. For bf16 the limit is 3.39e38 instead of
    65504: 112 bits more. nonfinite: of the layer's tensors, forward; nonfinite_bw: backward.
    """

    layer: int
    forward: float | None
    backward: float | None
    weights: float | None
    forward_max: float | None
    backward_max: float | None
    weights_max: float | None
    forward_at: str | None
    backward_at: str | None
    weights_at: str | None
    nonfinite: int
    nonfinite_bw: int


class Overflow(Data):
    """The first place with numbers that are not finite, in the order in which they are computed: forward from the first layer, backward
    from the last. name: the layer's output, or the module or parameter within it. nonfinite: how many there. For the reference, where 65504
    would be exceeded first; ``direction`` "weights" if it is by a stored weight.
    """

    layer: int
    name: str
    direction: Literal["weights", "forward", "backward"]
    nonfinite: int


class Variant(Data):
    """One way of running the model, beside the reference.

    settings: as parsed; written: the same as one writes them; attention: the implementation that ran. loss_scale: the largest power of two
    that keeps all gradients finite, by which they were divided again before comparing; 1 but for fp16; null if none does (gradients are
    then those of the unscaled loss). trials: backward passes that finding it took. loss: the mean. reference_loss: that of what it was
    compared with. tensors: in the order computed; parameter gradients are pooled layer by layer beyond `limits.REPORT_TENSORS` rows.
    headroom: of its own numbers, layers -1 to L; overflow, overflow_bw: null where everything is finite.
    """

    settings: Settings
    written: str
    attention: str
    loss_scale: float | None
    trials: int
    loss: float | None
    reference_loss: float
    summary: Summary
    logprobs: Logprobs
    tensors: tuple[TensorError, ...]
    parameter_kinds: tuple[ParameterKind, ...]
    headroom: tuple[Headroom, ...]
    overflow: Overflow | None
    overflow_bw: Overflow | None


class Reference(Data):
    """The run in fp32, TF32 off, with the stored (or random) weights. headroom: layers -1 to L. fp16_overflow: where fp16 would overflow
    first, forward, by a weight or a value; null if nowhere. sequence_losses: for gspo the mean is taken of them.
    """

    attention: str
    weights: Literal["pretrained", "random"]
    layers: int
    parameters: int
    loss: float
    sequence_losses: tuple[float, ...]
    headroom: tuple[Headroom, ...]
    fp16_overflow: Overflow | None


class Inputs(Data):
    """What the model was run on. source: "builtin", "text", "random", a file or a dataset; commit: of a dataset, or a hash of the text;
    null for the built-in text and random tokens. token_ids: (sequences, length). predicted: tokens with a log-probability, length - 1 of
    each row. advantages: empty for ce. preview: how the first row begins.
    """

    source: str
    commit: str | None
    sequences: int
    length: int
    predicted: int
    token_ids: tuple[tuple[int, ...], ...]
    advantages: tuple[float, ...]
    preview: str


class Passes(Data):
    """How often the model was run forward and backward: reference runs (more than one if ``pre_rounded``), variants, and trials of loss
    scales beyond each variant's first.
    """

    reference: int
    variants: int
    trials: int


class PrecisionReport(Report):
    """How rounding error grows through the model, in each way of running it. variants: by name, in the order asked for.

    statement: the reading in plain words, one sentence for each finding.
    """

    analyzer: Literal["precision"] = "precision"
    schema_version: int = 1
    request: PrecisionRequest
    checkpoint: CheckpointFacts
    inputs: Inputs
    reference: Reference
    variants: dict[str, Variant]
    passes: Passes
    statement: str
    notes: tuple[str, ...]

    def subject(self) -> dict[str, str]:
        """The model."""
        return {"model": self.checkpoint.ref}

    def tables(self) -> "dict[str, pandas.DataFrame]":
        """``summary`` (one row), ``variants`` (one row each: the columns of `Summary`), ``tensors``, ``parameter_kinds``, ``headroom`` (the
        reference's under the variant "reference"), ``logprobs``.
        """
        from analyzers.precision_variants.tables import tables

        return tables(self)
