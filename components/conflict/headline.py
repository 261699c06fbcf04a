"""The headline: one rate with what it means, and under it the four tiles. In HTML; whatever comes from outside is escaped here."""

from typing import TYPE_CHECKING

from components.conflict.names import data_name, unit, units
from components.text import numbers
from components.text.headline import ESTIMATE, FACT, about_sample, answer, cannot_tell, card, model_head, number, tiles
from components.text.markup import tag
from components.text.names import model_name
from components.text.plain_text import html

if TYPE_CHECKING:
    from analyzers.gradient_conflict.report import ConflictReport
    from analyzers.gradient_conflict.summaries import Rates


def headline(report: "ConflictReport") -> str:
    """Head, number, tiles."""
    last = _topk(report) if report.original is not None else _batches(report)
    return card(
        "Gradient conflict",
        _head(report),
        about_sample(report.checkpoint.ref, more=", on the built-in text"),
        number("Conflict rate", numbers.share(report.model.conflict_rate), report.model.interval, report.statement),
        tiles(_whole(report), _size(report), _dominance(report), last),
        _open(report),
    )


def summary(report: "ConflictReport") -> str:
    """The headline as one line of plain text (not HTML), for a status line or a screen reader."""
    return f"{model_name(report)}: conflict rate {numbers.share(report.model.conflict_rate)}. {report.statement}"


def left_open(rates: "Rates") -> str:
    """The range that the arithmetic leaves open, or a dash."""
    low, high = rates.undecided.low, rates.undecided.high
    return numbers.NOTHING if low is None or high is None else f"{numbers.share(low)} to {numbers.share(high)}"


def points(difference: float | None) -> str:
    """A difference of two shares, in percentage points."""
    return numbers.NOTHING if difference is None else f"{100 * difference:+.2g} points"


def _head(report: "ConflictReport") -> str:
    data, ffn = report.data, report.ffn
    facts = (
        f"{numbers.count(ffn.neurons)} {units(report)} in {numbers.plural(ffn.layers, 'layer')}, "
        f"{numbers.plural(data.samples, 'sample')} of {data_name(report)}, {numbers.plural(data.tokens, 'token')}, "
        f"{report.dtype}. Took {numbers.duration(report.timing.seconds)}"
    )
    return model_head(model_name(report), report.checkpoint, facts)


def _open(report: "ConflictReport") -> str:
    """Said of a rate of which the arithmetic leaves much open."""
    from analyzers.gradient_conflict.words import TRUSTED

    share = report.model.undecided.share
    if share is None or share <= TRUSTED:
        return ""
    said = f"In {report.dtype} the rate may be anything from {left_open(report.model)}: run the model in float32 to narrow it."
    return f'<p class="m-left-out">{html(said, 300)}</p>'


def _whole(report: "ConflictReport") -> str:
    whole = report.model.whole
    if whole.conflict_rate is None:
        return cannot_tell("Whole gradients", "No two samples have a gradient.")
    body = (
        f"Of the pairs of samples, so many conflict in their whole gradients, all {units(report)} taken together. "
        f"The mean cosine is {numbers.magnitude(whole.mean_cosine)}."
    )
    return answer("Whole gradients", numbers.share(whole.conflict_rate), FACT, body)


def _size(report: "ConflictReport") -> str:
    model = report.model
    body = f"Mean similarity of the sizes of two gradients of the same {unit(report)}: 1 for equal lengths, near 0 if one is far longer."
    value = numbers.magnitude(model.magnitude_similarity)
    return answer("Of one size?", value, FACT, body)


def _dominance(report: "ConflictReport") -> str:
    found = report.dominance
    if found.effective_samples is None or found.top_share is None or found.top_sample is None:
        return cannot_tell("Dominance", "No sample has a gradient.")
    body = (
        f"So many equal samples would weigh as much as the {numbers.plural(report.data.samples, 'sample')}. The largest, sample "
        f"{found.top_sample}, has {numbers.share(found.top_share)} of the sum of squares; an equal part is "
        f"{numbers.share(1 / report.data.samples)}."
    )
    return answer("Dominance", f"{found.effective_samples:.3g} of {report.data.samples}", FACT, body)


def _topk(report: "ConflictReport") -> str:
    model = report.differences[0] if report.differences else None
    original = report.original.model.conflict_rate if report.original is not None else None
    if model is None or model.conflict_rate is None:
        return cannot_tell("Top-k against original", "There is nothing to compare.")
    kept = f"Tokens keep {numbers.share(report.ffn.topk.kept)} of the neurons. " if report.ffn.topk is not None else ""
    body = f"{kept}Conflict rate {numbers.share(original)} with the original FFN, {numbers.share(report.model.conflict_rate)} with top-k."
    interval, how = model.interval, FACT
    if interval is not None:
        body += f" 95% interval of the difference: {100 * interval.low:+.2g} to {points(interval.high)}."
        how = tag("undecided", "no clear difference") if interval.low <= 0 <= interval.high else ESTIMATE
    return answer("Top-k against original", points(model.conflict_rate), how, body)


def _batches(report: "ConflictReport") -> str:
    scale = report.model.whole.noise_scale
    if scale is None:
        body = "The mean gradient of these samples cannot be told from noise: more samples might show one."
        return cannot_tell("Noise scale", body)
    body = "The batch size at which the noise of a batch's gradient would be as large as its signal, judged from these samples."
    return answer("Noise scale", numbers.magnitude(scale), ESTIMATE, body)
