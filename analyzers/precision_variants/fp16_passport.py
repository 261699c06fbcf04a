"""Answers whether a model's values fit fp16 on the texts that were run, and where they are largest.

Magnitudes are those of the fp32 reference: the infinities of a run in fp16 hide them. Covered are the inputs and outputs of the modules of
every layer, the embeddings, the final norm and the logits, their gradients and those of parameters; not what a module holds inside, such as
attention scores and the products within fused experts. A run in fp16 among the variants covers these too, and counts where it overflows.
"""

import math
from typing import Annotated, Literal

from analyzers.core.records import Record
from analyzers.core.rows import Shown
from analyzers.numerics.formats import FP16

Verdict = Literal["safe", "at_risk", "overflows"]
AT_RISK_BITS = 2.0


class Extreme(Record):
    """The largest |x| of a kind. margin_bits = log2(65504 / |value|); module: "layers.3.mlp.up_proj" within a layer, with " input" for what
    enters it, or the parameter; text, position: the sequence and the token in it, from 0; excerpt: the text that ends with this
    token. Null where all values are 0, where the value belongs to no single token, and where the tokens come from no text.
    """

    value: Annotated[float | None, Shown("Largest value", "magnitude")] = None
    margin_bits: Annotated[
        float | None, Shown("Bits below 65504", "magnitude", help="log2(65,504 / largest value): 0 bits are an overflow.")
    ] = None
    module: Annotated[str | None, Shown("in", help="The module, or the parameter, that has the largest value.")] = None
    text: Annotated[int | None, Shown("Sequence, from 0", "count")] = None
    position: Annotated[int | None, Shown("Token, from 0", "count")] = None
    excerpt: Annotated[str | None, Shown("Text up to it")] = None


class Rescale(Record):
    """factor: the power of two by which the output of ``module``, or what enters it, must be divided to leave one bit of margin."""

    module: str
    factor: float


class Fp16Passport(Record):
    """The answer for the texts that were run.

    verdict: "overflows" where a value of the reference or a stored weight rounds to infinity (from 65520 on), where a plain fp16 run is not
    finite, or where no loss scale keeps its gradients finite; else "at_risk" where a margin, forward, backward or of a weight, is under 2
    bits; null where all is 0. texts: sequences; tokens: those that ran, all but the last of each; cut: whether the text has more.
    first_overflow: the largest value of the first module, in the order computed, that overflows; not_called: modules that were not called,
    and so not measured.
    """

    verdict: Verdict | None
    texts: int
    tokens: int
    cut: bool
    weights: Extreme
    forward: Extreme
    backward: Extreme
    first_overflow: Extreme | None
    rescale: Rescale | None
    not_called: tuple[str, ...]


def bits(value: float | None) -> float | None:
    """Return the margin of a value below the largest of fp16."""
    return math.log2(FP16.largest / abs(value)) if value else None


def least(passport: Fp16Passport) -> float | None:
    """Return the smallest margin, forward, backward or of a weight."""
    each = (passport.weights, passport.forward, passport.backward)
    return min((extreme.margin_bits for extreme in each if extreme.margin_bits is not None), default=None)
