"""In which precision a model was trained: a label if there is one, else an inference; names its basis.

Weights reveal the precision of the stored copy, not of the compute; so this is kept apart from lineage.
"""

from analyzers.dtype_detection.classifier import Estimate, fitted, magnitudes_of
from analyzers.dtype_detection.labels import PRECISIONS, Label, precision_of
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
_WHY = {
    "clear": "",
    "unclear": "No precision is more likely than all others combined. ",
    "unsupported": "Too far from every labelled model to answer; the probabilities are the shares of the labelled families. ",
    "unlearned": "The most likely precision is one that magnitudes cannot reveal. ",
}


def infer_training(label: Label | None, lineage: Lineage, base: Extremes, dtypes: dict[str, int]) -> Training:
    """Label, then lineage, then the classifier; the first that applies.

    base: extremes of the base model (no LM head, no buffers), as in the reference table. dtypes: parameters by stored
    dtype. The classifier's verdict is "undecided" where it abstains; its probabilities are still given.
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
            probabilities=_mostly(through),
            basis="lineage",
            explanation=(
                f"The values have passed through {through} or are stored in it; copies usually keep the precision of training. "
                f"The {LINEAGE_CONFIDENCE:.0%} is an assumption, not a measurement."
            ),
            source=None,
        )
    magnitudes = magnitudes_of(base.model_dump())
    if lineage.stored in _WIDE and lineage.verdict in _NOTHING_NARROWER and magnitudes is not None:
        found = fitted().classifier.estimate(magnitudes)
        return Training(
            verdict=found.verdict,
            probabilities=found.probabilities,
            basis="classifier",
            explanation=_explain(found, base),
            source="stas00/ml-ways",
        )
    return Training(
        verdict="undecided",
        probabilities={},
        basis="none",
        explanation="No label, and neither the bits nor magnitudes say more.",
        source=None,
    )


def _explain(found: Estimate, base: Extremes) -> str:
    """The classifier's inputs, the nearest labelled model, the reason if it abstains, and the answer of the rule of thumb."""
    assert base.abs_max is not None and base.norm_max is not None  # the classifier was asked
    seen = f"{'' if base.exact else 'at least '}{base.abs_max:.3g}, largest norm {'' if base.exact else 'about '}{base.norm_max:.3g}"
    kept = "" if found.reason == "unsupported" else " fp32 keeps its share of the labelled families, since magnitudes cannot reveal it."
    return (
        f"{_WHY[found.reason]}From magnitudes without LM head and buffers: largest weight {seen}. Nearest labelled model: "
        f"{found.nearest.model} ({found.nearest.precision}), {found.distance:.2g} standard deviations away.{kept} "
        f"The rule of thumb would say {rule(base.abs_max, base.norm_max)}."
    )


def _mostly(precision: str) -> dict[str, float]:
    rest = [name for name in PRECISIONS[:3] if name != precision]
    return {precision: LINEAGE_CONFIDENCE} | {name: (1 - LINEAGE_CONFIDENCE) / len(rest) for name in rest}


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
