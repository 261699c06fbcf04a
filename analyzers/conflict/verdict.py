"""Decides the answer of gradient conflict, the advice, and the notes that change how its numbers are to be read."""

import math
from collections.abc import Iterator
from typing import Any, Literal

from analyzers.conflict.report import DataFacts
from analyzers.conflict.request import ConflictRequest
from analyzers.conflict.rows import Measurement
from analyzers.conflict.words import WORDS, nouns
from analyzers.core.notes import Advice, Note

# An effective sample size below this share of the samples is dominance of a few.
_DOMINATED = 0.5
_HALF = 0.5
# With fewer samples an interval of the jackknife excludes the rate of unrelated gradients in more than 5% of cases.
_FEWEST = 5
# A rate is not to be trusted if more than this share of its pairs is numerically undecided.
TRUSTED = 0.1


def answer(request: ConflictRequest, found: Measurement, data: DataFacts, dtype: str) -> Note:
    """Return what a top-k FFN changes or, without one, how the conflict rate compares with that of unrelated gradients."""
    model = found.model
    of: dict[str, Any] = {"many": nouns(data.tokens is None)[1], "samples": data.samples}
    rate: Any = model.interval or model.conflict_rate
    if rate is None or found.unmodified.conflict_rate is None:
        return WORDS.note("nothing", **of)
    if found.original is not None:
        before: Any = found.original.interval or found.original.conflict_rate
        return WORDS.note(_change(found), **of, before=before, after=rate)
    if request.gamma:
        return WORDS.note("below-gamma", **of, rate=rate, pairs=model.pairs, gamma=request.gamma)
    code = against_chance(found, data.samples)
    if code == "undecided":
        low, high = model.undecided.low, model.undecided.high
        return WORDS.note(code, **of, pairs=model.pairs, low=low, high=high, dtype=dtype, most=most_by_chance(data.samples))
    return WORDS.note(code, **of, rate=rate, pairs=model.pairs, most=most_by_chance(data.samples))


def _change(found: Measurement) -> Literal["topk-more", "topk-less", "topk-same"]:
    if found.change is None or found.change.low <= 0 <= found.change.high:
        return "topk-same"
    return "topk-more" if found.change.low > 0 else "topk-less"


def against_chance(found: Measurement, samples: int) -> Literal["more", "less", "chance", "undecided", "few"]:
    """Compare the conflict rate with that of unrelated gradients; a verdict that numerically undecided pairs could reverse is none."""
    model = found.model
    rate, interval, bounds = model.conflict_rate, model.interval, model.undecided
    if rate is None or interval is None or samples < _FEWEST:
        return "few"
    verdict = beyond_chance(interval.low, interval.high, samples)
    below, above = (0.0 if bound is None else bound - rate for bound in (bounds.low, bounds.high))
    if verdict and beyond_chance(interval.low + below, interval.high + above, samples) != verdict:
        return "undecided"
    return verdict or "chance"


def most_by_chance(samples: int) -> float:
    """Return the largest conflict rate of unrelated gradients, S / (2 (S - 1)): that of gradients which all lie along one direction."""
    return samples / (2 * (samples - 1))


def beyond_chance(low: float, high: float, samples: int) -> Literal["more", "less", ""]:
    """Compare an interval of the conflict rate with the rates of unrelated gradients, from a half to `most_by_chance`."""
    return "more" if low > most_by_chance(samples) else "less" if high < _HALF else ""


def advice(found: Measurement, data: DataFacts, model: str) -> Advice:
    """Return what to change in training of the unmodified model, where the interval decides it, or else to measure more.

    Next comes the rounding error of the same gradients.
    """
    whole = found.unmodified.whole
    effective, scale, low, high = whole.effective_samples, whole.noise_scale, whole.noise_scale_low, whole.noise_scale_high
    one, many = nouns(data.tokens is None)
    if effective is not None and effective < _DOMINATED * data.samples:
        return WORDS.advice("clip", "precision", model, one=one, many=many, effective=effective, samples=data.samples)
    if scale is not None and high is not None and high < 1:
        return WORDS.advice("small-batches", "precision", model, scale=max(scale, 0.0), many=many, samples=data.samples)
    if scale is not None and low is not None and low > 1:
        return WORDS.advice("average", "precision", model, scale=scale, least=math.ceil(low), many=many)
    return WORDS.advice("measure-more", "precision", model, many=many, samples=data.samples)


def notes(request: ConflictRequest, found: Measurement, dtype: str) -> Iterator[Note]:
    """Yield what changes how the numbers are to be read."""
    low, high = found.model.undecided.low, found.model.undecided.high
    if low is not None and high is not None and high - low > TRUSTED:
        yield WORDS.note("rounding", low=low, high=high, gamma=request.gamma, dtype=dtype)
    if dtype == "float16":
        yield WORDS.note("float16")
