"""Says whether a model's values fit fp16 on the texts that were run: the answer, its source and its sentences.

Magnitudes are those of the fp32 reference: the infinities of a run in fp16 hide them. Covered are the inputs and outputs of the modules of
every layer, the embeddings, the final norm and the logits, their gradients and those of parameters; not what a module holds inside, such as
attention scores and the products within fused experts. A run in fp16 among the variants covers these too, and counts where it overflows.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Literal

from analyzers.formatting import listed, magnitude, power, share
from analyzers.numerics.formats import FP16, FP16_OVERFLOW
from analyzers.precision_variants.measurements import Reference, Variant
from analyzers.records import Record
from analyzers.terminal import plural

Verdict = Literal["safe", "at_risk", "overflows"]
AT_RISK_BITS = 2.0
OTHERS = "Other texts may exceed it."
_LIMIT = f"{FP16.largest:.0f}"
_NAMED = 6


class Extreme(Record):
    """The largest |x| of a kind. margin_bits = log2(65504 / |value|); module: "layers.3.mlp.up_proj" within a layer, with " input" for what
    enters it, or the parameter; text, position: the sequence and the token in it, from 0; excerpt: the text that ends with this
    token. Null where all values are 0, where the value belongs to no single token, and where the tokens come from no text.
    """

    margin_bits: float | None = None
    module: str | None = None
    text: int | None = None
    position: int | None = None
    excerpt: str | None = None
    value: float | None = None


class Gradients(Extreme):
    """The largest gradient, without loss scale. loss_scale: the largest power of two, up to 2^40, by which all gradients can be multiplied.

    underflow, underflow_scaled: the share of the nonzero gradients that become 0 in fp16 (up to 2^-25), without the loss scale and with
    it; of those that are compared: at the boundaries of layers, of parameters, and on request inside layers.
    """

    loss_scale: float | None = None
    underflow: float | None = None
    underflow_scaled: float | None = None


class Rescale(Record):
    """factor: the power of two by which the output of ``module``, or what enters it, must be divided to leave one bit of margin."""

    module: str
    factor: float


class Fp16Passport(Record):
    """The answer for the texts that were run.

    verdict: "overflows" where a value of the reference or a stored weight rounds to infinity (from 65520 on), where a plain fp16 run is not
    finite, or where no loss scale keeps its gradients finite; else "at_risk" where a margin, forward, backward or of a weight, is under 2
    bits; null where all is 0. texts: sequences; tokens: those that ran, all but the last of each; cut: whether the text has more.
    first_overflow: the largest value of the first module, in the order computed, that overflows; not_called: modules that were not called.
    """

    verdict: Verdict | None
    texts: int
    tokens: int
    cut: bool
    weights: Extreme
    forward: Extreme
    backward: Gradients
    first_overflow: Extreme | None
    rescale: Rescale | None
    not_called: tuple[str, ...]
    statement: str


def bits(value: float | None) -> float | None:
    """Return the margin of a value below the largest of fp16."""
    return math.log2(FP16.largest / abs(value)) if value else None


def answered(measured: Fp16Passport, reference: Reference, variants: Mapping[str, Variant]) -> Fp16Passport:
    """Add the weights, the verdict, the rescale and the statement to what was measured."""
    heaviest = max(reference.headroom, key=lambda row: row.weights_max or 0.0)
    weights, first = Extreme(margin_bits=heaviest.weights, module=heaviest.weights_at, value=heaviest.weights_max), measured.first_overflow
    rescale = None
    if first is not None and first.module and first.value:
        rescale = Rescale(module=first.module, factor=2.0 ** math.ceil(math.log2(2 * abs(first.value) / FP16.largest)))
    known = measured.model_copy(update={"weights": weights, "rescale": rescale})
    reasons, margin = [*_overflows(known, variants)], least(known)
    verdict: Verdict | None = "safe"
    if reasons:
        verdict = "overflows"
    elif known.forward.value is None or margin is None:
        verdict = None
    elif margin < AT_RISK_BITS:
        verdict = "at_risk"
    judged = known.model_copy(update={"verdict": verdict})
    return judged.model_copy(update={"statement": " ".join([*_statement(judged, reasons, reference.weights == "random"), OTHERS])})


def short(passport: Fp16Passport) -> str:
    """Write the answer in a sentence, and what it does not cover in another."""
    first, margin = passport.first_overflow, least(passport)
    if passport.verdict == "overflows":
        where = f": {first.module} is the first module to exceed {_LIMIT}" if first is not None else f", whose limit is {_LIMIT}"
        return f"Not safe in fp16 on these texts{where}. {OTHERS}"
    if passport.verdict is None or margin is None:
        return f"Whether fp16 is safe cannot be told: all values are 0 on these texts, below {_LIMIT}. {OTHERS}"
    if passport.verdict == "at_risk":
        return f"At risk in fp16 on these texts: a value comes within {margin:.2g} bits of {_LIMIT}. {OTHERS}"
    return f"Safe in fp16 on these texts: values stay {margin:.2g} bits below {_LIMIT}. {OTHERS}"


def least(passport: Fp16Passport) -> float | None:
    """Return the smallest margin, forward, backward or of a weight."""
    each = (passport.weights, passport.forward, passport.backward)
    return min((extreme.margin_bits for extreme in each if extreme.margin_bits is not None), default=None)


def place(extreme: Extreme) -> str:
    """Write the value, its module, and the token where it has one."""
    at = ""
    if extreme.text is not None and extreme.position is not None:
        at = f" at token {extreme.position + 1} of sequence {extreme.text + 1}" + (f' ("{extreme.excerpt}")' if extreme.excerpt else "")
    return f"{magnitude(extreme.value)} in {extreme.module}{at}"


def _overflows(passport: Fp16Passport, variants: Mapping[str, Variant]) -> Iterator[str]:
    """Yield the reasons for which fp16 overflows."""
    first, weights, rescale = passport.first_overflow, passport.weights, passport.rescale
    if first is not None and rescale is not None:
        yield (
            f"The first value to exceed {_LIMIT} is {place(first)}. Divided by {rescale.factor:,.0f} it fits with one bit to spare; "
            "what that changes in later modules was not measured."
        )
    if weights.value is not None and weights.value >= FP16_OVERFLOW:
        yield f"A stored weight exceeds {_LIMIT}: {place(weights)}."
    for name, variant in variants.items():
        settings, over = variant.settings, variant.overflow
        if settings.dtype != "fp16" or settings.fp32 or settings.autocast or settings.weights is not None:
            continue
        if over is not None:
            yield f"The run in {name} is not finite, first in layer {over.layer} ({over.name})."
        elif variant.loss_scale is None:
            yield f"No loss scale keeps the gradients of {name} finite."


def _statement(passport: Fp16Passport, reasons: list[str], random: bool) -> Iterator[str]:
    ran = f"{plural(passport.texts, 'sequence')}, {plural(passport.tokens, 'token')}{', random weights' if random else ''}"
    texts, margin = f"these texts ({ran})", least(passport)
    if passport.verdict == "overflows":
        yield f"In fp16 this model overflows on {texts}."
        yield from reasons
    elif passport.verdict is None or margin is None:
        yield f"Whether fp16 is safe cannot be told: all values are 0 on {texts}."
    elif passport.verdict == "at_risk":
        yield f"In fp16 this model is at risk on {texts}: its smallest margin is {margin:.2g} bits, under {AT_RISK_BITS:.0f}."
    else:
        yield f"In fp16 this model is safe on {texts}: its smallest margin is {margin:.2g} bits."
    if passport.first_overflow is None and passport.forward.margin_bits is not None:
        yield f"Forward, the largest value is {place(passport.forward)}, {_away(passport.forward.margin_bits)}."
    yield from _backward(passport.backward)
    if passport.cut:
        yield f"The text is longer than the {plural(passport.tokens, 'token')} that ran."
    if passport.not_called:
        more = [f"{len(passport.not_called) - _NAMED:,} more"] if len(passport.not_called) > _NAMED else []
        yield f"Not called as modules, so not measured: {listed([*passport.not_called[:_NAMED], *more])}."
    yield f"Inputs and outputs of modules were measured, not values within one, such as attention scores. The limit of fp16 is {_LIMIT}."


def _away(margin: float) -> str:
    return f"{abs(margin):.2g} bits {'below' if margin >= 0 else 'above'} the limit"


def _backward(gradients: Gradients) -> Iterator[str]:
    if gradients.margin_bits is None or gradients.loss_scale is None:
        yield "All gradients are 0."
        return
    scale = power(round(math.log2(gradients.loss_scale)))
    yield f"Backward, the largest gradient is {place(gradients)}, {_away(gradients.margin_bits)}: a loss scale can be at most {scale}."
    if gradients.underflow is not None:
        lost, scaled = share(gradients.underflow), share(gradients.underflow_scaled)
        yield f"Without a loss scale {lost} of the nonzero gradients become 0 in fp16, with this one {scaled}."
