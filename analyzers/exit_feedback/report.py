"""The progress and the report of exit feedback. Field names are the JSON contract; fields may be added, never renamed.

At the head: hidden state h (width d), logits z (vocabulary V), the loss of a token its cross-entropy in nats. The exact gradient e of that
loss with respect to h is what backpropagation sends into the model; a *signal* s stands in for it. Cosines are between s and e of one token
unless called *total*, which takes all tokens as one long vector. The same is asked *before the norm*: both gradients sent back through what
stands between the last layer and the head, and compared with the hidden state that entered it. A missing number is null: nothing to take
it of, or a division by zero. Layers are counted from 0.
"""

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from analyzers.base import CheckpointFacts, Data, Progress, Report
from analyzers.exit_feedback.request import ExitRequest
from analyzers.numerics import student_t

if TYPE_CHECKING:
    import pandas

HISTOGRAM_BINS = 50
"""Of cosines, equally wide, from -1 to 1; the last one holds 1."""
LOSS_BINS = 5
NULL = "fresh_codes"
"""Name of the null where methods are named: random codes (`dense`) that are drawn anew for every piece of tokens, so that nothing can be
learnt of them."""

# Of fewer draws the standard error itself is not known well enough to call anything noise, or not.
_FEWEST = 4

Stage = Literal["model", "methods", "layers", "sweep", "cost", "training"]
Parameter = Literal["rank", "k", "anchors", "seed"]


class ExitProgress(Progress):
    """Progress in steps of very different length. stage: what is being done; cosines: the mean of each method measured so far, at the last
    layer; losses: of the trunk under each signal trained so far, the last of them.
    """

    stage: Stage
    cosines: dict[str, float | None] = Field(default_factory=dict)
    losses: dict[str, float | None] = Field(default_factory=dict)


class Distribution(Data):
    """Over tokens: mean and percentiles."""

    mean: float
    p10: float
    p50: float
    p90: float


class Alignment(Data):
    """How a signal lies to the exact gradient. S and E are all tokens' s and e as one vector.

    tokens: with an exact gradient that is not 0; zero: those of them whose signal is 0, of cosine 0. cosine: over tokens; histogram:
    tokens in each of `HISTOGRAM_BINS`. total_cosine = S.E / (|S| |E|). norm_ratio = |S| / |E|. best_scale = S.E / |S|^2, by which the
    signal comes nearest to the exact gradient, leaving 1 - total_cosine^2 of its energy. parallel_energy: the share of |S|^2 that goes
    along the hidden states.
    """

    tokens: int
    zero: int
    cosine: Distribution | None
    histogram: tuple[int, ...]
    total_cosine: float | None
    norm_ratio: float | None
    best_scale: float | None
    parallel_energy: float | None


class LossBin(Data):
    """Tokens with a loss from low to high, a fifth of them all. exact_energy: their share of |E|^2; the rest as of `Alignment`."""

    low: float
    high: float
    tokens: int
    cosine: Distribution | None
    total_cosine: float | None
    norm_ratio: float | None
    exact_energy: float | None


class OverSeeds(Data):
    """Mean cosines of several draws of random codes: their mean, its standard error (null for one draw), and each. seeds: which."""

    mean: float
    standard_error: float | None
    seeds: tuple[int, ...]
    values: tuple[float, ...]

    @property
    def within_noise(self) -> bool | None:
        """Whether the 95% interval of the mean, by Student's t, holds 0; None for fewer than 4 draws, too few to tell."""
        if self.standard_error is None or len(self.values) < _FEWEST:
            return None
        return abs(self.mean) <= student_t(len(self.values) - 1) * self.standard_error


class Method(Alignment):
    """A signal at the last layer. settings: what it was given, those that it uses. before_norm: the same before the final norm.

    over_seeds: of methods with random codes. seconds, peak_bytes: of loss and gradients by its fused form in pieces (`CostRow`, "chunked");
    they differ from run to run. null where cost was not measured.
    """

    settings: dict[str, int | float | bool | None]
    before_norm: Alignment
    loss_bins: tuple[LossBin, ...]
    over_seeds: OverSeeds | None
    seconds: float | None
    peak_bytes: int | None


class Exact(Data):
    """The exact gradient. loss: mean over tokens, in nats; norm: root mean square of |e|. parallel_energy: share of |E|^2 along the hidden
    states; the same before the final norm, of which RMSNorm leaves nearly nothing. zero: tokens whose exact gradient is 0.
    """

    loss: float
    norm: float
    parallel_energy: float | None
    parallel_energy_before_norm: float | None
    zero: int


class LayerRow(Data):
    """A method at one layer as the logit lens sees it: final norm and head applied to what the layer gives. loss: of that, mean in nats.

    exact_parallel_energy: of the exact gradient there. before_norm_cosine: as ``cosine``, before the final norm.
    """

    layer: int
    method: str
    loss: float
    cosine: Distribution | None
    total_cosine: float | None
    norm_ratio: float | None
    best_scale: float | None
    parallel_energy: float | None
    exact_parallel_energy: float | None
    before_norm_cosine: Distribution | None


class SweepRow(Data):
    """A method with one of its settings at ``value`` and codes of ``seed``; ``parameter`` "seed" where that alone differs.

    ceiling: it reads the head's weight on the way back, as svd and true_rows do; null: its codes are drawn anew for every piece of tokens.
    """

    method: str
    parameter: Parameter
    value: int
    seed: int
    ceiling: bool
    null: bool
    cosine: Distribution | None
    total_cosine: float | None
    norm_ratio: float | None
    best_scale: float | None


class TrainingRow(Data):
    """The small trunk trained under one signal: "exact" is backpropagation; "frozen" sends nothing back, so that only the head learns.

    settings: as of `Method`, for the trunk's own width and vocabulary. losses: of the batches at ``training_steps``, mean in nats; null
    from where they are no numbers. cosines: at the same steps, mean over tokens of the signal with the exact gradient at that moment.
    first_loss, final_loss: over all rows, before and after. recovered: the share of what the trunk's learning brings that is kept,
    (frozen - this) / (frozen - exact) of final losses; null where exact brings nothing.
    """

    method: str
    settings: dict[str, int | float | bool | None]
    losses: tuple[float | None, ...]
    cosines: tuple[float | None, ...]
    first_loss: float | None
    final_loss: float | None
    recovered: float | None


class Trunk(Data):
    """What was trained: a decoder of ``layers`` layers (width, heads; RMSNorm, SwiGLU, no ties) over the tokens that the text has, from the
    same first weights and on the same batches for every signal. rows: of ``length`` tokens, ``batch`` of them a step.
    """

    vocabulary: int
    width: int
    layers: int
    heads: int
    parameters: int
    rows: int
    length: int
    batch: int
    steps: int
    learning_rate: float


class CostRow(Data):
    """What loss and gradients take at the head (for h, W and bias), on ``Cost.tokens`` tokens. form: "whole" has all logits at once, and
    autograd; "chunked" is the fused form in pieces of ``Cost.chunk`` tokens. seconds: median of `Cost.repeats` runs; peak_bytes: allocated
    at one time beyond weights and inputs. time_ratio, memory_ratio: to exact backpropagation, whole.
    """

    method: str
    form: Literal["whole", "chunked"]
    seconds: float
    peak_bytes: int
    time_ratio: float | None
    memory_ratio: float | None


class Cost(Data):
    """Time and memory of each method beside the exact gradient. All of it differs from run to run, and from machine to machine."""

    tokens: int
    chunk: int
    repeats: int
    rows: tuple[CostRow, ...]


class Head(Data):
    """The head that was measured. padded: rows of its weight that stand for no token of the tokenizer. scale, softcap: of logits; norm:
    what stands before it. tied: its weight is that of the input embeddings.
    """

    vocabulary: int
    tokenizer_vocabulary: int
    padded: int
    width: int
    bias: bool
    tied: bool
    scale: float
    softcap: float | None
    norm: str


class Inputs(Data):
    """What was run. source: "builtin", a file or a dataset, at ``commit`` (the hash of a file). token_ids: of each sample, the answer from
    ``answer_starts`` on; positions: of each sample, the tokens whose hidden states were measured, each of which predicts the next.
    truncated: samples that were longer. measured, answer_tokens: predicted tokens that were measured, and that there are.
    """

    source: str
    commit: str | None
    samples: int
    truncated: int
    measured: int
    answer_tokens: int
    token_ids: tuple[tuple[int, ...], ...]
    answer_starts: tuple[int, ...]
    positions: tuple[tuple[int, ...], ...]
    preview: str


class ExitReport(Report):
    """How close each signal comes to the exact gradient. methods: by name, in the order asked for, at the last layer.

    null: the mean cosine of fresh random codes over seeds. layers: of the logit lens, the last layer included. training: exact and frozen
    first; empty, like ``trunk`` null, where there was none. statement: the reading in plain words. `TIMINGS` names what is no part of "the
    same report".
    """

    analyzer: Literal["exit"] = "exit"
    schema_version: int = 1
    request: ExitRequest
    checkpoint: CheckpointFacts
    dtype: str
    head: Head
    inputs: Inputs
    exact: Exact
    methods: dict[str, Method]
    null: OverSeeds | None
    layers: tuple[LayerRow, ...]
    sweep: tuple[SweepRow, ...]
    trunk: Trunk | None
    training_steps: tuple[int, ...]
    training: tuple[TrainingRow, ...]
    cost: Cost
    statement: str
    notes: tuple[str, ...]

    def subject(self) -> dict[str, str]:
        """The model."""
        return {"model": self.checkpoint.ref}

    def same(self) -> dict[str, Any]:
        """As JSON has it, without timings and the environment: equal for equal requests on the same machine."""
        return self.model_dump(mode="json", exclude=TIMINGS)

    def tables(self) -> "dict[str, pandas.DataFrame]":
        """``summary`` (one row), ``methods`` (a row for each, at the head and before the norm), ``loss_bins``, ``histogram``, ``layers``,
        ``sweep``, ``training`` (a row for each signal), ``curves``, ``cost``.
        """
        from analyzers.exit_feedback.tables import tables

        return tables(self)


TIMINGS: Any = {"timing": True, "environment": True, "cost": True, "methods": {"__all__": {"seconds", "peak_bytes"}}}
"""What of a report is outside of its id and of "the same report", in the form that pydantic's ``exclude`` takes."""
