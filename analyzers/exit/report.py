"""The report of exit feedback. Field names are the JSON contract; a field with a title is a column of a table.

The head maps a hidden state h (width d) to logits z (vocabulary V); the loss of a token is its cross-entropy in nats. The exact gradient e
of that loss with respect to h is what backpropagation passes to the model; a *signal* s replaces it. Cosines are between s and e of one
token; *total* cosines treat all tokens as one long vector. *Before the norm* means that both gradients are backpropagated through the
modules between the last layer and the head, and the hidden state is the one that enters these modules. A missing number is null: an empty
average, or a division by zero.
"""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from analyzers.core.columns import Column, Table
from analyzers.core.records import Record
from analyzers.core.report import CheckpointFacts, Report
from analyzers.core.rows import Rows, Shown, columns
from analyzers.exit.request import ExitRequest
from analyzers.exit.signals import CEILINGS
from analyzers.exit.words import energy_share, give_or_take, mean, milliseconds, settings, signal_name

# With fewer draws, the standard error itself is too uncertain to distinguish a mean from noise.
_FEWEST = 4

Form = Literal["whole", "chunked"]
Parameter = Literal["rank", "k", "anchors", "seed"]


class Distribution(Record):
    """Mean and percentiles over tokens."""

    mean: Annotated[float, Shown("Mean cosine", "cosine", "Cosine with the exact gradient of a token, mean over tokens.")]
    p10: Annotated[float, Shown("10%", "cosine", "A tenth of the tokens have a smaller cosine.")]
    p50: Annotated[float, Shown("Median", "cosine")]
    p90: Annotated[float, Shown("90%", "cosine", "A tenth of the tokens have a larger cosine.")]


class Alignment(Record):
    """Alignment of a signal with the exact gradient. S and E are the s and e of all tokens, each as one vector.

    tokens: number with a nonzero exact gradient; zero: number of those whose signal is 0, with cosine 0. cosine: over tokens. total_cosine
    = S.E / (|S| |E|). norm_ratio = |S| / |E|. best_scale = S.E / |S|^2, the scale with the smallest squared error, which is
    1 - total_cosine^2 of |E|^2. parallel_energy: the share of |S|^2 along the hidden states.
    """

    tokens: int
    zero: int
    cosine: Distribution | None
    total_cosine: Annotated[float | None, Shown("Total cosine", "cosine", "Cosine of the gradients of all tokens, as one vector.")]
    norm_ratio: Annotated[float | None, Shown("Norm ratio", "magnitude", "Norm of the signal, relative to that of the exact gradient.")]
    best_scale: Annotated[float | None, Shown("Best scale", "magnitude", "Factor of the signal with the smallest squared error.")]
    parallel_energy: Annotated[float | None, Shown("Along h", energy_share, "Share of the signal's energy along the hidden states.")]


class LossRange(Record):
    """The losses of a fifth of the tokens."""

    low: Annotated[float, Shown("Loss from", "magnitude")]
    high: Annotated[float, Shown("to", "magnitude")]


class LossBin(Alignment, LossRange):
    """The alignment on a fifth of the tokens, by loss. exact_energy: their share of |E|^2."""

    exact_energy: Annotated[
        float | None, Shown("Exact gradient's energy", "share", "Share of the squared norm of the exact gradient in these tokens.")
    ]


class OverSeeds(Record):
    """Mean cosines (``values``) of several draws of random codes, with their mean and its standard error (null for one draw)."""

    mean: float
    standard_error: float | None
    values: tuple[float, ...]

    @property
    def within_noise(self) -> bool | None:
        """True if the 95% interval of the mean, by Student's t, contains 0; None for fewer than 4 draws."""
        if self.standard_error is None or len(self.values) < _FEWEST:
            return None
        from analyzers.numerics import student_t

        return abs(self.mean) <= student_t(len(self.values) - 1) * self.standard_error


class Method(Alignment):
    """A signal. settings: those that it uses. before_norm: its alignment before the final norm. over_seeds: for methods with random codes.
    seconds, peak_bytes: those of the "chunked" `CostRow`; they vary from run to run.
    """

    settings: dict[str, int | float | bool | str | None]
    before_norm: Annotated[
        Alignment,
        Shown(
            "Before the norm",
            lambda alignment: mean(alignment.cosine),
            "Mean cosine once both gradients are backpropagated through the final norm.",
        ),
    ]
    loss_bins: tuple[LossBin, ...]
    over_seeds: Annotated[
        OverSeeds | None,
        Shown("Over seeds", give_or_take, "Mean cosine over several draws of random codes, with its standard error."),
    ]
    seconds: float
    peak_bytes: int


class Exact(Record):
    """The exact gradient. loss: mean over tokens, in nats; norm: root mean square of |e|. parallel_energy: share of |E|^2 along the hidden
    states; the backward pass of RMSNorm removes nearly all of it. zero: number of tokens whose exact gradient is 0.
    """

    loss: float
    norm: float
    parallel_energy: float | None
    parallel_energy_before_norm: float | None
    zero: int


class SweepPoint(Record):
    """A method with one setting changed to ``value`` and codes of ``seed``; ``parameter`` is "seed" if only the seed differs.

    ceiling: its backward pass reads the head's weight (svd, true_rows); null: its codes are drawn anew for every batch of tokens.
    """

    method: Annotated[str, Shown("Signal", signal_name)]
    parameter: Annotated[Parameter, Shown("Setting")]
    value: Annotated[int, Shown("Value", "count")]
    seed: Annotated[int, Shown("Seed")]
    ceiling: bool
    null: bool


class SweepRow(Alignment, SweepPoint):
    """The alignment at a point of the sweep."""


class CostRow(Record):
    """Time and memory of loss and gradients (of h, W and bias) on ``Cost.tokens`` tokens.

    form: "whole", all logits at once with autograd; "chunked", the fused loss in chunks of ``Cost.chunk`` tokens. seconds: the fastest of
    several runs; peak_bytes: in addition to weights and inputs. time_ratio, memory_ratio: relative to the fastest exact run,
    ``Cost.exact_form``, in every row.
    """

    method: Annotated[str, Shown("Gradient", signal_name)]
    form: Annotated[Form, Shown("Form", help="All logits at once, or the fused loss in chunks of tokens.")]
    seconds: Annotated[float, Shown("Time", milliseconds)]
    peak_bytes: Annotated[int, Shown("Memory", "size")]
    time_ratio: Annotated[float | None, Shown("Time vs exact", "magnitude", "Relative to the fastest run of the exact gradient.")]
    memory_ratio: Annotated[float | None, Shown("Memory vs exact", "magnitude", "Relative to the fastest run of the exact gradient.")]


class Cost(Record):
    """Time and memory of each method and of the exact gradient; they vary from run to run. exact_form: the faster form of the exact
    gradient, the reference of ratios.
    """

    tokens: int
    chunk: int
    rows: Annotated[tuple[CostRow, ...], Rows("Cost, relative to the fastest run of the exact gradient", "cost")]
    exact_form: Form


class Head(Record):
    """The measured head. padded: rows of its weight beyond the tokenizer's vocabulary. scale, softcap: of the logits; norm: class of the
    module before the head. tied: the weight is shared with the input embeddings.
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


class Inputs(Record):
    """The text. source: "builtin", a file or a dataset, at ``commit`` (the hash of a file). token_ids: tokens of each sample, with the
    answer from ``answer_starts`` on; positions: for each sample, the tokens whose hidden states were measured, each predicting the next
    token. truncated: number of truncated samples. measured, answer_tokens: number of predicted tokens that were measured, and of all.
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


_SIGNAL = Column("method", "Signal", cell=lambda row: signal_name(row["method"]))


def _methods(report: "ExitReport") -> Iterator[dict[str, Any]]:
    yield from ({"method": name, **vars(method)} for name, method in report.methods.items())


def _loss_bins(report: "ExitReport") -> Iterator[dict[str, Any]]:
    for name, method in report.methods.items():
        yield from ({"method": name, **vars(row)} for row in method.loss_bins)


class ExitReport(Report):
    """The alignment of each signal with the exact gradient. methods: by name, in the requested order.

    null: mean cosine of fresh random codes over seeds.
    """

    DERIVED: ClassVar[tuple[Table, ...]] = (
        Table(
            "methods",
            _methods,
            (_SIGNAL, *columns(Method), Column("settings", "Settings", value=lambda row: settings(row["settings"]))),
            title="Signals",
        ),
        Table("loss_bins", _loss_bins, (_SIGNAL, *columns(LossBin)), title="By loss"),
    )

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
    sweep: Annotated[tuple[SweepRow, ...], Rows("Sweep")]
    cost: Cost

    @property
    def closest(self) -> str | None:
        """Return the signal with the largest mean cosine, a ceiling only if nothing else was measured; None without an exact gradient."""
        return closest(self.methods)


def closest(methods: dict[str, Method]) -> str | None:
    """Return the signal with the largest mean cosine, among those that read no row of the head's weight if there are any."""
    cosines = {name: method.cosine.mean for name, method in methods.items() if method.cosine is not None}
    free = {name: mean for name, mean in cosines.items() if name not in CEILINGS}
    return max(free or cosines, key=(free or cosines).__getitem__, default=None)
