"""The parts of the report on an engine's log-probabilities. Field names are the JSON contract; fields may be added, never renamed.

e = log p of the engine - log p of the fp32 reference, in nats, for each token with a log-probability; b the same for the model's own bf16
run.
"""

from typing import Literal

from analyzers.records import Record

Verdict = Literal["within", "beyond", "undecided"]
CauseKind = Literal[
    "temperature", "filter", "penalty", "rounded", "offset", "tokens", "context", "quantized", "kv_cache", "routing", "higher_precision",
    "forbidden", "masked", "other_weights",
]  # fmt: skip


class Difference(Record):
    """Of |e| (or |b|): mean, median, 99th percentile and maximum, in nats."""

    mean_abs: float
    p50: float
    p99: float
    max: float


class Ratio(Record):
    """mean |e| / mean |b|, null if b is all 0. low, high: its 95% interval, from resampling ``units`` of ``over``: whole sequences, or
    where there are fewer than 8 blocks of neighbouring tokens; null with fewer than 8 of either.
    """

    value: float | None
    low: float | None
    high: float | None
    over: str
    units: int


class KL(Record):
    """Estimates of KL(engine || reference) if the engine sampled the tokens: k1 = mean e; k3 = mean (exp(-e) - 1 + e), never negative."""

    k1: float
    k3: float


class ImportanceRatio(Record):
    """Percentiles of exp(-e), the ratio of the reference's probability to the engine's."""

    p1: float
    p50: float
    p99: float
    max: float


class TokenDifference(Record):
    """One token. sequence, position: from 0; text: decoded alone, "" without a tokenizer or
    for a part of a character; engine: null where it is minus infinity."""

    sequence: int
    position: int
    token: int
    text: str
    engine: float | None
    reference: float
    bf16: float


class VariantRatio(Record):
    """A variant's own deviation d from the reference on the same tokens, and ratio = mean |e| / mean |d|."""

    variant: str
    difference: Difference
    ratio: Ratio


class Cause(Record):
    """A cause. explains: "all" if what remains is within the band, "part" if it is not, "elimination" if nothing else was left. remaining:
    mean |e| / mean |b| under the cause; gain: the factor by which the cause makes mean |e| smaller, low to high its 99%
    interval; null where nothing was fitted.
    told_apart: false if another cause listed explains as much; routing and other weights are then both left over.
    """

    kind: CauseKind
    what: str
    explains: Literal["all", "part", "elimination"]
    remaining: Ratio | None = None
    gain: float | None = None
    gain_low: float | None = None
    gain_high: float | None = None
    told_apart: bool = True


class RunDifference(Record):
    """The engine's log-probabilities less those of another run, on the same tokens. ratio: to bf16's own deviation from fp32. forbidden:
    tokens at minus infinity in one of the two, which rounding never gives.
    """

    tokens: int
    forbidden: int = 0
    difference: Difference
    ratio: Ratio
    band: float
    verdict: Verdict


class Engine(Record):
    """The engine's log-probabilities compared with the reference and with this model's own bf16 run on the same tokens.

    form: that of the file (`reading.FORMS`). tokens: those with a log-probability. forbidden: those at minus infinity, which are in no
    difference. verdict: "within" if ratio.high <= band, "beyond" if ratio.low > band, if a token is forbidden, or if a cause explains the
    difference better than rounding; else "undecided". needed: the number of tokens that would probably decide it, if the ratio stays; null
    if it is decided, has no interval, or would take more than 100 times as many. visible: the smallest independent deviation, in units of
    bf16's, that the band shows.
    causes: see `Cause`; tried: the names of all; on: the tokens on which causes that need logits were tried. shown: the first tokens, for
    the plot.
    """

    form: str
    sequences: int
    tokens: int
    forbidden: int
    difference: Difference
    bf16: Difference
    ratio: Ratio
    band: float
    visible: float
    verdict: Verdict
    needed: int | None = None
    kl: KL
    importance_ratio: ImportanceRatio
    variants: tuple[VariantRatio, ...]
    rerouted: int | None
    worst: tuple[TokenDifference, ...]
    shown: tuple[TokenDifference, ...]
    causes: tuple[Cause, ...]
    tried: tuple[str, ...]
    not_tried: tuple[str, ...]
    on: int
    against: RunDifference | None = None
