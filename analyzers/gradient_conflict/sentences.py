"""The answer of gradient conflict in one sentence, and what to do about it."""

from typing import TYPE_CHECKING

from analyzers.base import NextStep
from analyzers.formatting import between, magnitude, plural, share

if TYPE_CHECKING:
    from analyzers.gradient_conflict.report import ConflictReport, DataFacts

CHANCE = "unrelated gradients: about 50%"
# Below this effective share of the samples one of them is said to dominate.
_DOMINATED = 0.5


def sample_words(data: "DataFacts") -> tuple[str, str]:
    """What a sample is called, and several: batches of the caller have no tokens."""
    return ("sample", "samples") if data.tokens is not None else ("batch", "batches")


def described(data: "DataFacts") -> str:
    """How many samples of which data, and their tokens."""
    count = plural(data.samples, *sample_words(data))
    return f"{count} of the caller" if data.tokens is None else f"{count} of {data.source}, {plural(data.tokens, 'token')}"


def headline(report: "ConflictReport") -> str:
    """The conflict rate of the model as it is, what chance gives, and the change by a top-k FFN, if there is one."""
    found = report.original or report
    rate, interval = found.model.conflict_rate, found.model.interval
    if rate is None:
        return report.statement
    _, words = sample_words(report.data)
    unit = "neuron" if report.ffn.unit == "ffn" else "attention row"
    gamma = report.request.gamma
    how = f"have a cosine below {gamma:g}" if gamma else "conflict"
    said = [f"95% interval {between(interval)}"] if interval else []
    said += [] if gamma else [CHANCE]
    after = f" ({'; '.join(said)})" if said else ""
    changed = f"; {share(report.model.conflict_rate)} with top-k" if report.original is not None else ""
    return f"The gradients of two {words} in the same {unit} {how} in {share(rate)} of all combinations{after}{changed}."


def next_step(report: "ConflictReport") -> NextStep:
    """What to do, and the page on the rounding error of the same gradients."""
    return NextStep(_advice(report), "precision", report.checkpoint.ref)


def _advice(report: "ConflictReport") -> str:
    """What to change in training."""
    found = report.original or report
    word, words = sample_words(report.data)
    samples, effective = len(found.dominance.samples), found.dominance.effective_samples
    if effective is not None and effective < _DOMINATED * samples:
        return f"Clip gradients per {word}: a few {words} outweigh the rest (effective sample size {effective:.3g} of {samples})."
    scale = found.model.whole.noise_scale
    if scale is None:
        return f"Measure more {words}: the mean gradient of these cannot be distinguished from noise."
    if scale < 1:
        small = "Small batches suffice" if word == "sample" else "Batches of this size suffice"
        return f"{small}: the gradient of one {word} is mostly signal (estimated noise scale {magnitude(scale)} {words})."
    return f"Average over at least {magnitude(scale)} {words}: with fewer the gradient is mostly noise (its estimated noise scale)."
