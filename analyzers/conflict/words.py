"""The words of gradient conflict: a template per code, and the tiles."""

from typing import TYPE_CHECKING, Any

from analyzers.conflict.rows import ModelRow
from analyzers.core.formatting import between, magnitude, plural, rounded, share
from analyzers.core.notes import Tile
from analyzers.core.words import Words

if TYPE_CHECKING:
    from analyzers.conflict.report import ConflictReport

_SOURCES = {"builtin": "the built-in text", "tokens": "the given tokens", "batches": "the caller"}
_GRADIENTS = "among {samples:count} {many}, two gradients in the same neuron conflict in "
# Gradients with independent, symmetric directions have a cosine below 0 as often as above; see `verdict.beyond_chance`.
_CASES = " of cases, unrelated ones in 50% to {most:share}."
_CHANCE = _GRADIENTS + "{rate:share}" + _CASES
_TOPK = _GRADIENTS + "{after:share} of cases, with the original FFN in {before:share}."
FRONT = "layers"
WORDS = Words(
    {
        # the comparison with chance
        "more": "More conflict than chance: " + _CHANCE,
        "less": "Less conflict than chance: " + _CHANCE,
        "chance": "No clear difference from chance: " + _CHANCE,
        "few": "Too few {many} to compare with chance: " + _CHANCE,
        "undecided": "Numerically undecided in {dtype}: " + _GRADIENTS + "{low:share} to {high:share}" + _CASES,
        # another gamma than 0, and no gradients
        "below-gamma": "Among {samples:count} {many}, two gradients in the same neuron have a cosine below {gamma:number} in {rate:share}.",
        "nothing": "Nothing to compare: no two of {samples:count} {many} have a gradient in the same neuron.",
        # top-k against the original
        "topk-more": "The top-k FFN raises conflict: " + _TOPK,
        "topk-less": "The top-k FFN lowers conflict: " + _TOPK,
        "topk-same": "No clear change by the top-k FFN: " + _TOPK,
        # advice
        "clip": "Clip gradients per {one}: a few outweigh the rest (effective sample size {effective:magnitude} of {samples:count}).",
        "measure-more": "Measure more {many}: the mean gradient of these {samples:count} cannot be distinguished from noise.",
        "small-batches": "Keep batches small: each gradient of {samples:count} {many} is mostly signal (noise scale {scale:magnitude}).",
        "average": (
            "Average over at least {least:count} {many}: with fewer the gradient is mostly noise (noise scale {scale:magnitude}; its 95% "
            "interval begins at {least:count})."
        ),
        # what changes how the numbers are to be read
        "rounding": (
            "The conflict rate lies between {low:share} and {high:share}: the cosines in between are closer to "
            "{gamma:number} than the rounding error of {dtype}. Run the model in float32."
        ),
        "float16": "In float16, gradients below 6e-8 become zero; float32 and bfloat16 keep them.",
        "batches": (
            "The samples are gradients of the caller's loss, with respect to {weights:count} of the model's {parameters:count} parameters; "
            "their rounding error is taken to be that of {dtype}, the weights' type."
        ),
    }
)


def tiles(report: "ConflictReport") -> list[Tile]:
    """Return the conflict rate, that of whole gradients, dominance and the noise scale; with a top-k FFN, also what it changes."""
    model, before = report.model, report.original
    units = plural(model.neurons, "neuron")
    samples = plural(report.data.samples, *nouns(report.data.tokens is None))
    source = _SOURCES.get(report.data.source, report.data.source)
    measured = f"{units} in {plural(len({row.layer for row in report.layers}), 'layer')}, {samples} of {source}, {report.dtype}."
    interval = f"95% interval {between(model.interval)}. " if model.interval is not None and before is None else ""
    within = f" (95% interval {between(model.whole.interval)})" if model.whole.interval is not None and before is None else ""
    mean = f"mean cosine {magnitude(model.whole.mean_cosine)}."
    return [
        Tile(
            label="Conflict",
            value=_change(before, model, lambda row: share(row.conflict_rate)),
            kind="estimate" if model.interval is not None else "fact",
            detail=interval + measured,
        ),
        *([_topk(report)] if before is not None else []),
        Tile(
            label="Whole gradients",
            value=_change(before, model, lambda row: share(row.whole.conflict_rate)),
            kind="fact" if model.whole.interval is None else "estimate",
            detail=f"Conflict with the gradients of all neurons as one vector, among {samples}{within}; {mean}",
        ),
        _dominance(report),
        _noise_scale(report),
    ]


def nouns(batches: bool) -> tuple[str, str]:
    """Return the singular and plural word for samples, which may be batches of the caller."""
    return ("batch", "batches") if batches else ("sample", "samples")


def _change(before: ModelRow | None, after: ModelRow, write: Any) -> str:
    return str(write(after)) if before is None else f"{write(before)} → {write(after)} with top-k"


def _topk(report: "ConflictReport") -> Tile:
    change, topk = report.change, report.ffn.topk
    detail = f"Tokens keep {share(topk.kept)} of the neurons. " if topk is not None else ""
    if change is None:
        return Tile(label="Change by top-k", value="Cannot tell", kind="undecided", detail=f"{detail}Too few samples for an interval.")
    detail += f"95% interval {_points(change.low)} to {_points(change.high)} points."
    clear = not change.low <= 0 <= change.high
    value = f"{_points(change.estimate)} points"
    return Tile(label="Change by top-k", value=value, kind="estimate" if clear else "undecided", detail=detail)


def _points(difference: float) -> str:
    """Write a difference of two shares in percentage points, with its sign."""
    return f"{rounded(difference, 2, 2):+.2g}" if difference else "0"


def _dominance(report: "ConflictReport") -> Tile:
    found, samples = report.dominance, report.data.samples
    if found.effective_samples is None:
        return Tile(label="Effective sample size", value="Cannot tell", kind="undecided", detail="No sample has a gradient.")
    return Tile(
        label="Effective sample size",
        value=_change(report.original, report.model, lambda row: f"{magnitude(row.whole.effective_samples)} of {samples}"),
        kind="fact",
        detail=f"{nouns(report.data.tokens is None)[0].capitalize()} {found.top_sample} has {share(found.top_share)} of the squared norm.",
    )


def _noise_scale(report: "ConflictReport") -> Tile:
    whole = report.unmodified.whole
    scale, low, high = whole.noise_scale, whole.noise_scale_low, whole.noise_scale_high
    value, kind = ("Cannot tell", "undecided") if scale is None else (magnitude(max(scale, 0.0)), "estimate")
    bounds = f"95% interval {magnitude(low)} {'and above' if high is None else f'to {magnitude(high)}'}. " if low is not None else ""
    samples = plural(report.data.samples, *nouns(report.data.tokens is None))
    detail = f"{bounds}The batch size at which a gradient has as much noise as signal, from {samples}."
    return Tile(label="Noise scale", value=value, kind=kind, detail=detail)
