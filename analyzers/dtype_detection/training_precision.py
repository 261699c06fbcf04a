"""Infers the precision in which a model was trained: from a label if there is one, else from magnitudes, or "undecided", with the basis.

Weights reveal the precision of the stored copy, not of the compute: fp32 masters saved as bf16 and pure bf16 training look the same. So
this is kept apart from lineage, from which nothing is inferred.
"""

from collections.abc import Iterable

from analyzers.dtype_detection.classifier import Estimate, fitted, magnitudes_of
from analyzers.dtype_detection.labelled_models import PRECISIONS, Label, precision_of
from analyzers.dtype_detection.report import Extremes, Lineage, Training
from analyzers.dtype_detection.rule_of_thumb import rule
from analyzers.dtype_detection.sentences import SOURCE, undecided
from analyzers.dtype_detection.similar_models import confidence, similar_model


def infer_training(label: Label | None, lineage: Lineage, base: Extremes, model_type: object = None, names: Iterable[str] = ()) -> Training:
    """Infer from a label, else from a labelled model of the same architecture, else from the classifier: the first that applies.

    lineage: explains why the format of a copy is no answer, as `trials.copies` measures. base: extremes of the base model (no LM head, no
    buffers), as in the reference table. model_type: from config.json, untrusted; names: of tensors. Without a claim the verdict is
    "undecided", with no probabilities.
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
    magnitudes = magnitudes_of(base.model_dump())
    if magnitudes is None:
        return Training(
            verdict="undecided",
            probabilities={},
            basis="none",
            explanation="No label, and neither the bits nor magnitudes say more.",
            source=None,
        )
    known = similar_model(model_type, names, magnitudes)
    if known is not None:
        return Training(
            verdict=known.precision,
            probabilities=_mostly(known.precision, confidence()),
            basis="family",
            explanation=(
                f"The architecture and the weight magnitudes are those of {known.model}, and all labelled models of this architecture "
                f"were trained in {known.precision}. Training it further in another precision would not show."
            ),
            source=SOURCE,
        )
    found = fitted().classifier.estimate(magnitudes)
    claimed = found.verdict != "undecided"
    return Training(
        verdict=found.verdict,
        probabilities=found.probabilities if claimed else {},
        basis="classifier",
        explanation=f"{'' if claimed else f'It cannot be told from the weights. {undecided(lineage)} '}{_resembles(found, base)}",
        source=SOURCE,
    )


def _resembles(found: Estimate, base: Extremes) -> str:
    """Name the labelled models that the magnitudes resemble, and the answer of the rule of thumb."""
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
