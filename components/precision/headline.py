"""The headline: the reading in plain words, and under it the four tiles. In HTML; whatever comes from outside is escaped here."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from components.precision.names import data_name, layer_name, within_layer
from components.text import numbers
from components.text.headline import FACT, about_sample, answer, cannot_tell, card, model_head, reading, tiles
from components.text.markup import tag
from components.text.names import model_name

if TYPE_CHECKING:
    from analyzers.precision_variants.report import Headroom, PrecisionReport, Variant


def headline(report: "PrecisionReport") -> str:
    """Head, sentences, tiles."""
    return card(
        "Precision variants",
        _head(report),
        about_sample(report.checkpoint.ref),
        reading("What rounding does to it", report.statement),
        tiles(_closest(report), _worst_layer(report), _ratio(report), _headroom(report)),
    )


def summary(report: "PrecisionReport") -> str:
    """The headline as one line of plain text (not HTML), for a status line or a screen reader."""
    return f"{model_name(report)}: {report.statement}"


def least(report: "PrecisionReport") -> "tuple[float, Headroom] | None":
    """The least headroom of any layer of the reference, in bits, forward or of a weight, and where."""
    levels = [(bits, row) for row in report.reference.headroom for bits in (row.forward, row.weights) if bits is not None]
    return min(levels, key=lambda level: level[0], default=None)


def _head(report: "PrecisionReport") -> str:
    inputs, reference = report.inputs, report.reference
    facts = (
        f"{numbers.plural(reference.layers, 'layer')}, {numbers.parameters(reference.parameters)} parameters"
        f"{', random' if reference.weights == 'random' else ''}; {numbers.plural(inputs.sequences, 'sequence')} of "
        f"{numbers.plural(inputs.length, 'token')} of {data_name(report)}. Took {numbers.duration(report.timing.seconds)}"
    )
    return model_head(model_name(report), report.checkpoint, facts)


def _closest(report: "PrecisionReport") -> str:
    found = _errors(report, lambda variant: variant.summary.logprob_mean)
    if not found:
        return cannot_tell("Closest to fp32", "No variant gave finite log-probabilities.")
    closest, farthest = min(found, key=found.__getitem__), max(found, key=found.__getitem__)
    body = f"Its log-probabilities are off by {numbers.magnitude(found[closest])} nats on average"
    body += f"; those of {farthest}, the farthest, by {numbers.magnitude(found[farthest])}." if farthest != closest else "."
    return answer("Closest to fp32", closest, FACT, body)


def _worst_layer(report: "PrecisionReport") -> str:
    found = _errors(report, lambda variant: variant.summary.mid_max)
    if not found:
        return cannot_tell("Worst layer", "No variant gave finite hidden states in every layer.")
    best, worst = min(found, key=found.__getitem__), max(found, key=found.__getitem__)
    low, high = f"{100 * found[best]:.2g}", f"{100 * found[worst]:.2g}"
    between, which = (f"{high}%", f"of {best}") if best == worst else (f"{low} to {high}%", f"from {best} to {worst}")
    body = f"Error of hidden states in the worst of the middle layers, as a share of their size (rms): {which}."
    return answer("Worst layer", between, FACT, body)


def _ratio(report: "PrecisionReport") -> str:
    found = _errors(report, lambda variant: variant.logprobs.ratio_mean)
    if not found:
        return cannot_tell("Importance ratio", "No variant gave finite log-probabilities.")
    name = max(found, key=found.__getitem__)
    logprobs = report.variants[name].logprobs
    body = (
        f"So far from 1 is, on average, the ratio of a token's probabilities in {name} and in fp32; at most "
        f"{numbers.share(logprobs.ratio_max)}. A policy gradient sees it that samples in the one and learns in the other."
    )
    return answer("Importance ratio", numbers.share(found[name]), FACT, body)


def _headroom(report: "PrecisionReport") -> str:
    over, layers = report.reference.fp16_overflow, report.reference.layers
    if over is not None:
        what = "a stored weight" if over.direction == "weights" else "what is computed there"
        body = f"First in {layer_name(over.layer, layers)}: {within_layer(over.name)}, {what}, goes beyond 65504."
        return answer("Safe in fp16?", "Overflows", tag("warning", "not safe"), body)
    level = least(report)
    if level is None:
        return cannot_tell("Safe in fp16?", "All numbers are 0.")
    bits, row = level
    body = (
        f"On this text the largest number is in {layer_name(row.layer, layers)}: it would have to grow "
        f"{numbers.magnitude(2**bits)} times to overflow."
    )
    return answer("Safe in fp16?", f"{bits:.3g} bits left", FACT, body)


def _errors(report: "PrecisionReport", error: "Callable[[Variant], float | None]") -> dict[str, float]:
    """A measure of each variant by name; those that overflow, or that are the reference again, are left out."""
    measured = ((name, error(variant)) for name, variant in report.variants.items() if variant.overflow is None)
    return {name: value for name, value in measured if value}
