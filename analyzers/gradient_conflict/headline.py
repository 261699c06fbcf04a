"""The answer of gradient conflict in one sentence, and what to do about it."""

from typing import TYPE_CHECKING

from analyzers.formatting import between, magnitude, share

if TYPE_CHECKING:
    from analyzers.gradient_conflict.report import ConflictReport

CHANCE = "unrelated gradients: about 50%"
# Below this effective share of the samples one of them is said to dominate.
_DOMINATED = 0.5


def headline(report: "ConflictReport") -> str:
    """The conflict rate of the model as it is, what chance gives, and the change by a top-k FFN, if there is one."""
    found = report.original or report
    rate, interval = found.model.conflict_rate, found.model.interval
    if rate is None:
        return report.statement
    unit = "neuron" if report.ffn.unit == "ffn" else "attention row"
    gamma = report.request.gamma
    how = f"have a cosine below {gamma:g}" if gamma else "conflict"
    said = [f"95% interval {between(interval)}"] if interval else []
    said += [] if gamma else [CHANCE]
    after = f" ({'; '.join(said)})" if said else ""
    changed = f"; {share(report.model.conflict_rate)} with top-k" if report.original is not None else ""
    return f"The gradients of two samples in the same {unit} {how} in {share(rate)} of all combinations{after}{changed}."


def advice(report: "ConflictReport") -> str:
    """What to change in training."""
    found = report.original or report
    samples, effective = len(found.dominance.samples), found.dominance.effective_samples
    if effective is not None and effective < _DOMINATED * samples:
        return f"Clip gradients per sample: a few samples outweigh the rest (effective sample size {effective:.3g} of {samples})."
    scale = found.model.whole.noise_scale
    if scale is None:
        return "Measure more samples: the mean gradient of these cannot be distinguished from noise."
    if scale < 1:
        return f"Small batches suffice: the gradient of one sample is mostly signal (estimated noise scale {magnitude(scale)} samples)."
    return f"Average over at least {magnitude(scale)} samples: with fewer the gradient is mostly noise (its estimated noise scale)."
