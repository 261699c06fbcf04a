"""The parts of the report on an engine's log-probabilities. Field names are the JSON contract; a field with a title is a column of a table.

e = log p of the engine - log p of the fp32 reference, in nats, for each token with a log-probability; b the same for the model's own bf16
run.
"""

from typing import Annotated, Literal

from analyzers.core.records import Record
from analyzers.core.rows import Rows, Shown

Verdict = Literal["within", "beyond", "undecided"]
CauseKind = Literal["temperature", "filter", "rounded", "offset", "logarithm", "quantized", "forbidden"]


class Difference(Record):
    """Of |e| (or |b|): mean, median, 99th percentile and maximum, in nats."""

    mean_abs: Annotated[float, Shown("Mean difference, nats", "magnitude")]
    p50: float
    p99: float
    max: float


class Ratio(Record):
    """mean |e| / mean |b|, null if b is all 0. low, high: its 95% interval, from resampling ``units`` of ``over``: whole sequences, or
    where there are fewer than 8 blocks of neighbouring tokens; null with fewer than 8 of either.
    """

    value: Annotated[float | None, Shown("Ratio", "magnitude")]
    low: Annotated[float | None, Shown("Low", "magnitude")]
    high: Annotated[float | None, Shown("High", "magnitude")]
    over: str
    units: int


class TokenDifference(Record):
    """One token. sequence, position: from 0; text: decoded alone, "" without a tokenizer or
    for a part of a character; engine: null where it is minus infinity."""

    sequence: Annotated[int, Shown("Sequence, from 0", "count")]
    position: Annotated[int, Shown("Position, from 0", "count")]
    token: Annotated[int, Shown("Token", str)]
    text: Annotated[str, Shown("Text", repr)]
    engine: Annotated[float | None, Shown("Engine", "magnitude")]
    reference: Annotated[float, Shown("fp32", "magnitude")]
    bf16: Annotated[float, Shown("bf16", "magnitude")]


class NearRun(Record):
    """A run of ours. difference: its own deviation d from the reference on the same tokens; ratio = mean |e| / mean |d|."""

    run: Annotated[str, Shown("Run")]
    difference: Difference
    ratio: Ratio


class Cause(Record):
    """A cause. value: how much, or of what kind: 0.7 of a temperature, "top_k=20" of a filter, "fp8" of weights.

    explains: "all" if what remains is within the band, else "part"; these tokens do not tell apart several that explain all. remaining:
    mean |e| / mean |b| under the cause; gain: the factor by which the cause makes mean |e| smaller, low to high its 99% interval; null
    where nothing was fitted.
    """

    cause: CauseKind
    value: int | float | str
    explains: Literal["all", "part"]
    remaining: Ratio | None = None
    gain: float | None = None
    gain_low: float | None = None
    gain_high: float | None = None


class Engine(Record):
    """The engine's log-probabilities compared with the reference and with this model's own bf16 run on the same tokens.

    form: that of the file (`reading.FORMS`). compared: tokens with a log-probability. forbidden: those at minus infinity, which are in no
    difference. verdict: "within" if ratio.high <= band, "beyond" if ratio.low > band, if a token is forbidden, or if a cause explains the
    difference better than rounding; else "undecided". needed: the number of tokens that would probably decide it, if the ratio stays; null
    if it is decided, has no interval, or would take more than 100 times as many.
    nearest: runs of ours, that of the nearest ratio to 1 first.
    causes: see `Cause`; not_tried: quantized weights that this machine cannot run. tokens: those that depart most.
    """

    form: str
    sequences: int
    compared: int
    forbidden: int
    difference: Difference
    bf16: Difference
    ratio: Ratio
    band: float
    verdict: Verdict
    needed: int | None = None
    nearest: Annotated[tuple[NearRun, ...], Rows("The engine's difference from fp32 in units of each run's own")]
    tokens: Annotated[tuple[TokenDifference, ...], Rows("Tokens with the largest differences, in log-probabilities")]
    causes: tuple[Cause, ...]
    not_tried: tuple[str, ...] = ()
