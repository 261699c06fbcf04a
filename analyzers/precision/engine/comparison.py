"""How far an engine is from the reference, measured by the model's own bf16 run: ratios with intervals, and the verdict."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from analyzers.precision.engine.measurements import Difference, Ratio, Verdict

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

BAND = 1.2
"""An engine whose mean |e| is at most this many times bf16's is within. Clean runs (other attention, batches, padding, a cache) have
ratios of 0.95 to 1.1 on the samples; an independent deviation of sqrt(band^2 - 1) = 0.66 times bf16's own is the smallest that shows."""

_LIKELY = 1.65  # An interval this many times narrower than its distance to the limit decides in six of seven repetitions.
_MOST = 100  # Times the tokens, beyond which nobody goes on.
_LEAST_UNITS = 8  # Fewer units say too little about their spread.
_BLOCK = 32  # Tokens: neighbours share the errors of their common context.
_RESAMPLES = 2_000
_MOST_UNITS = 256  # Neighbouring units beyond these are pooled: the interval hardly changes.


@dataclass(frozen=True, eq=False, slots=True)
class Units:
    """What is resampled for intervals. labels (n,): the unit of each token; over: what units are."""

    labels: Integers
    over: str

    @classmethod
    def of(cls, lengths: Sequence[int]) -> "Units":
        """Return the sequences, or blocks of tokens if these are few. lengths: tokens with a difference, by sequence."""
        tokens = sum(lengths)
        if sum(length > 0 for length in lengths) >= _LEAST_UNITS:
            return cls(np.repeat(np.arange(len(lengths)), lengths), "sequences")
        block = max(1, min(_BLOCK, tokens // _LEAST_UNITS))
        return cls(np.arange(tokens) // block, f"blocks of {block} tokens" if block > 1 else "tokens")

    def ratio(self, e: Floats, b: Floats, where: Flags) -> Ratio:
        """Return mean |e| / mean |b| over the tokens ``where``, with its 95% interval."""
        value, low, high = self.quotient(e, b, where)
        return Ratio(value=value, low=low, high=high, over=self.over, units=len(np.unique(self.labels[where])))

    def quotient(self, e: Floats, b: Floats, where: Flags, level: float = 0.95) -> tuple[float | None, float | None, float | None]:
        """Return the same as numbers: its percentile interval is that of resampled units (with a fixed seed); None where it has none."""
        over, under = np.abs(e[where]), np.abs(b[where])
        if not under.sum():
            return None, None, None
        value = float(over.sum() / under.sum())
        _, labels = np.unique(self.labels[where], return_inverse=True)
        count = int(labels[-1]) + 1
        if count < _LEAST_UNITS:
            return value, None, None
        if count > _MOST_UNITS:
            labels, count = labels * _MOST_UNITS // count, _MOST_UNITS
        sums = np.stack([np.bincount(labels, weights=each, minlength=count) for each in (over, under)], 1)
        drawn = _resamples(count) @ sums
        ratios = drawn[:, 0] / np.maximum(drawn[:, 1], np.finfo(np.float64).tiny)
        low, high = np.quantile(ratios, [(1 - level) / 2, (1 + level) / 2])
        return value, float(low), float(high)


@lru_cache(4)
def _resamples(count: int) -> Integers:
    """Return how often each unit is in each resample."""
    return np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), _RESAMPLES)


def verdict(measured: Ratio, beyond: bool) -> Verdict:
    """Judge a ratio. beyond: something else than the size shows that rounding does not explain the difference."""
    if beyond or (measured.low is not None and measured.low > BAND):
        return "beyond"
    return "within" if measured.high is not None and measured.high <= BAND else "undecided"


def needed(measured: Ratio, tokens: int) -> int | None:
    """Return the number of tokens that would decide a ratio, if it stays what it is: None without an interval, or if they are too many."""
    if measured.value is None or measured.low is None or measured.high is None or measured.value == BAND:
        return None
    width = measured.value - measured.low if measured.value > BAND else measured.high - measured.value
    times = (_LIKELY * width / (measured.value - BAND)) ** 2
    return int(float(f"{tokens * times:.1e}")) if times <= _MOST else None


def difference(d: Floats) -> Difference:
    """Summarize |d|."""
    size = np.abs(d)
    p50, p99 = np.quantile(size, [0.5, 0.99])
    return Difference(mean_abs=float(size.mean()), p50=float(p50), p99=float(p99), max=float(size.max()))
