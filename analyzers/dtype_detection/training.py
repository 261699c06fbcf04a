"""In which precision a model was trained: a label if there is one, else an inference, or that it cannot be told; names its basis.

Weights reveal the precision of the stored copy, not of the compute; so this is kept apart from lineage.
"""

from collections.abc import Iterable

from analyzers.dtype_detection.classifier import Estimate, fitted, magnitudes_of
from analyzers.dtype_detection.labels import PRECISIONS, Label, precision_of
from analyzers.dtype_detection.relatives import confidence, relative
from analyzers.dtype_detection.report import Extremes, Lineage, Training
from analyzers.dtype_detection.rule import rule

# What passing through a format says about training in it. No count of models backs this number, for labels do not say
# what the labelled copy is stored in: it is a stated assumption, that one in ten of such copies was made by somebody who
# had trained in another precision.
LINEAGE_CONFIDENCE = 0.9

# Magnitudes count only for wide dtypes: a dtype of 16 bits or less is evidence itself, and too few values prove nothing.
_WIDE = ("F32", "F64")
_NOTHING_NARROWER = ("native", "mixed", "upcast-from-fp32")

_ANCESTOR = {
    "upcast-from-bf16": "bf16", "downcast-from-bf16": "bf16", "upcast-from-fp16": "fp16", "fp16-ancestor": "fp16", "fp8-ancestor": "fp8",
}  # fmt: skip
_SOURCE = "stas00/ml-ways"
# Why a file in fp32 or wider says nothing, in the words of a sentence.
UNTOLD = "cannot be told from the weights: fp32 masters are written by every kind of training"


def infer_training(
    label: Label | None, lineage: Lineage, base: Extremes, dtypes: dict[str, int], model_type: object = None, names: Iterable[str] = ()
) -> Training:
    """Label, then lineage, then a labelled model of the same architecture, then the classifier; the first that applies.

    base: extremes of the base model (no LM head, no buffers), as in the reference table. dtypes: parameters by stored
    dtype. model_type: of config.json, untrusted; names: of tensors. Without a claim the verdict is "undecided", with no probabilities.
    """
    if label is not None:
        precision = precision_of(label.precision)
        return Training(
            verdict=label.precision,
            probabilities={precision: 1.0} if precision else {},
            basis="label",
            explanation="A label with evidence, which beats any inference.",
            source=label.evidence,
        )
    through = _passed(lineage, dtypes)
    if through:
        return Training(
            verdict=through,
            probabilities=_mostly(through, LINEAGE_CONFIDENCE),
            basis="lineage",
            explanation=(
                f"The values have passed through {through} or are stored in it; copies usually keep the precision of training. "
                f"The {LINEAGE_CONFIDENCE:.0%} is an assumption, not a measurement."
            ),
            source=None,
        )
    magnitudes = magnitudes_of(base.model_dump())
    if lineage.stored not in _WIDE or lineage.verdict not in _NOTHING_NARROWER or magnitudes is None:
        return Training(
            verdict="undecided",
            probabilities={},
            basis="none",
            explanation="No label, and neither the bits nor magnitudes say more.",
            source=None,
        )
    known = relative(model_type, names, magnitudes)
    if known is not None:
        return Training(
            verdict=known.precision,
            probabilities=_mostly(known.precision, confidence()),
            basis="family",
            explanation=(
                f"The architecture and the size of the weights are those of {known.model}, and all labelled models of this architecture "
                f"were trained in {known.precision}. Training it further in another precision would not show."
            ),
            source=_SOURCE,
        )
    found = fitted().classifier.estimate(magnitudes)
    claimed = found.verdict != "undecided"
    return Training(
        verdict=found.verdict,
        probabilities=found.probabilities if claimed else {},
        basis="classifier",
        explanation=f"{'' if claimed else f'It {UNTOLD}. '}{_resembles(found, base)}",
        source=_SOURCE,
    )


def _resembles(found: Estimate, base: Extremes) -> str:
    """The labelled models that the magnitudes resemble, and the answer of the rule of thumb."""
    assert base.abs_max is not None and base.norm_max is not None  # the classifier was asked
    seen = f"{'' if base.exact else 'at least '}{base.abs_max:.3g}, largest norm {'' if base.exact else 'about '}{base.norm_max:.3g}"
    likeliest = max(found.probabilities, key=lambda name: found.probabilities[name])
    alike = f"They resemble models trained in {likeliest} ({found.probabilities[likeliest]:.0%})"
    if found.reason == "unsupported":
        alike = "No labelled model is near"
    return (
        f"Magnitudes without LM head and buffers: largest weight {seen}. {alike}; the nearest labelled model is {found.nearest.model} "
        f"({found.nearest.precision}), {found.distance:.2g} standard deviations away. "
        f"The rule of thumb would say {rule(base.abs_max, base.norm_max)}. Models trained in other precisions look the same."
    )


def _mostly(precision: str, probability: float) -> dict[str, float]:
    rest = [name for name in PRECISIONS[:3] if name != precision]
    return {precision: probability} | {name: (1 - probability) / len(rest) for name in rest}


def _passed(lineage: Lineage, dtypes: dict[str, int]) -> str | None:
    """The 16- or 8-bit format that most parameters are stored in or have passed through last, if the bits decide."""
    if lineage.stored.startswith("F8_"):
        return "fp8"
    if lineage.verdict == "undecided":
        return "bf16" if lineage.stored == "BF16" else None
    if lineage.verdict == "mixed":
        ancestors: dict[str, int] = {}
        for part in lineage.parts:
            if (name := _ANCESTOR.get(part.verdict)) is not None:
                ancestors[name] = ancestors.get(name, 0) + part.parameters
        leading = max(ancestors, key=lambda name: ancestors[name], default=None)
        if leading and 2 * ancestors[leading] > sum(dtypes.values()):
            return leading
    elif lineage.verdict == "fp8-ancestor":
        return "fp8"
    elif lineage.verdict == "fp4-ancestor":
        return None  # nobody trains in 4 bits alone, and they say nothing about what came before
    else:
        for name in ("bf16", "fp16"):
            if name in lineage.passed_through:
                return name
    return {"BF16": "bf16", "F16": "fp16"}.get(lineage.stored)
