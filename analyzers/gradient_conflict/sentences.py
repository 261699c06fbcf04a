"""Headline and advice of gradient conflict."""

from typing import TYPE_CHECKING

from analyzers.base import NextStep
from analyzers.formatting import between, magnitude, plural, share

if TYPE_CHECKING:
    from analyzers.gradient_conflict.report import ConflictReport, DataFacts

# Gradients with independent, symmetric directions have a cosine below 0 as often as above.
CHANCE = "unrelated gradients: about 50%"
# An effective sample size below this share of the samples is reported as dominance of a few.
_DOMINATED = 0.5


def sample_words(data: "DataFacts") -> tuple[str, str]:
    """Return the singular and plural word for samples: batches if they are the caller's, which have no tokens."""
    return ("sample", "samples") if data.tokens is not None else ("batch", "batches")


def described(data: "DataFacts") -> str:
    """Write the number of samples, their source, and the number of tokens."""
    count = plural(data.samples, *sample_words(data))
    return f"{count} of the caller" if data.tokens is None else f"{count} of {data.source}, {plural(data.tokens, 'token')}"


def headline(report: "ConflictReport") -> str:
    """Write the conflict rate of the unmodified model, the rate by chance, and the rate with a top-k FFN, if there is one."""
    unmodified = report.original or report
    rate, interval = unmodified.model.conflict_rate, unmodified.model.interval
    if rate is None:
        return report.statement
    _, words = sample_words(report.data)
    unit = "neuron" if report.ffn.unit == "ffn" else "attention row"
    gamma = report.request.gamma
    how = f"have a cosine below {gamma:g}" if gamma else "conflict"
    details = [f"95% interval {between(interval)}"] if interval else []
    details += [] if gamma else [CHANCE]
    after = f" ({'; '.join(details)})" if details else ""
    changed = f"; {share(report.model.conflict_rate)} with top-k" if report.original is not None else ""
    return f"The gradients of two {words} in the same {unit} {how} in {share(rate)} of all combinations{after}{changed}."


def next_step(report: "ConflictReport") -> NextStep:
    """Return advice, and the analyzer for the rounding error of the same gradients."""
    return NextStep(_advice(report), "precision", report.checkpoint.ref)


def _advice(report: "ConflictReport") -> str:
    """Write what to change in training."""
    unmodified = report.original or report
    word, words = sample_words(report.data)
    samples, effective = len(unmodified.dominance.samples), unmodified.dominance.effective_samples
    if effective is not None and effective < _DOMINATED * samples:
        return f"Clip gradients per {word}: a few {words} outweigh the rest (effective sample size {effective:.3g} of {samples})."
    scale = unmodified.model.whole.noise_scale
    if scale is None:
        return f"Measure more {words}: the mean gradient of these cannot be distinguished from noise."
    if scale < 1:
        small = "Small batches suffice" if word == "sample" else "Batches of this size suffice"
        return f"{small}: the gradient of one {word} is mostly signal (estimated noise scale {magnitude(scale)} {words})."
    return f"Average over at least {magnitude(scale)} {words}: with fewer the gradient is mostly noise (its estimated noise scale)."
