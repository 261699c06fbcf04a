"""Infers the precision in which a model was trained: from a label of it or of its base, else from magnitudes, or "undecided".

Weights reveal the precision of the stored copy, not of the compute: fp32 masters saved as bf16 and pure bf16 training look the same. So
this is kept apart from lineage, from which nothing is inferred.
"""

from collections.abc import Iterable
from typing import NamedTuple

from analyzers.core.tensor_words import dtype_name
from analyzers.dtype.classifier import confidence, fitted, magnitudes_of
from analyzers.dtype.labelled_models import PRECISIONS, Label, precision_of, similar_model
from analyzers.dtype.rows import Basis, Extremes, Lineage, Training

_HALVES = ("bf16", "fp16")

SOURCE = "stas00/ml-ways"
"""The repository of the labelled models and of the rule of thumb."""


class Thresholds(NamedTuple):
    """Thresholds of the rule: bf16 above ``abs_max``, else fp16 below ``norm_max``."""

    abs_max: float
    norm_max: float


PUBLISHED = Thresholds(1e2, 1e3)


def rule(abs_max: float, norm_max: float, thresholds: Thresholds = PUBLISHED) -> str:
    """Apply the well-known rule: abs max > 1e2 means bf16; else norm max < 1e3 means fp16; else fp32 (stas00/ml-ways)."""
    if abs_max > thresholds.abs_max:
        return "bf16"
    return "fp16" if norm_max < thresholds.norm_max else "fp32"


def infer_training(
    label: Label | None,
    extremes: Extremes,
    model_type: object = None,
    names: Iterable[str] = (),
    lineage: Lineage | None = None,
    base: tuple[str, Label] | None = None,
) -> Training:
    """Infer from a label, else from that of the base, a labelled model of the same architecture, the classifier: the first that applies.

    extremes: without the LM head and buffers, as in the reference table. model_type: from config.json, untrusted; names: of tensors; base:
    the labelled model that this one was made from, and its label. Without a claim the verdict is "undecided", with no probabilities: every
    kind of training can be saved in any format, so the format of a copy is no answer. lineage: weights that were first in one 16-bit format
    are not inferred to be trained in the other.
    """
    if label is not None:
        precision = precision_of(label.precision)
        return Training(verdict=label.precision, probabilities={precision: 1.0} if precision else {}, basis="label", source=label.evidence)
    if base is not None and (precision := precision_of(base[1].precision)) is not None:
        return _unless_contradicted(_like("base", base[0], precision, base[1].evidence), lineage)
    magnitudes = magnitudes_of(extremes.model_dump())
    if magnitudes is None:
        return Training(verdict="undecided", probabilities={}, basis="none")
    known = similar_model(model_type, names, magnitudes)
    if known is not None:
        return _unless_contradicted(_like("family", known.model, known.precision, SOURCE), lineage)
    found = fitted().estimate(magnitudes)
    inferred = Training(
        verdict=found.verdict,
        probabilities=found.probabilities if found.verdict != "undecided" else {},
        basis="classifier",
        source=SOURCE,
    )
    return _unless_contradicted(inferred, lineage)


def _unless_contradicted(training: Training, lineage: Lineage | None) -> Training:
    """Return the inference, or that nothing is inferred where the weights were first in another 16-bit format."""
    formats = (*lineage.passed_through, dtype_name(lineage.stored)) if lineage is not None else ()
    first = next((name for name in formats if name in _HALVES), None)
    if first is None or training.verdict not in _HALVES or training.verdict == first:
        return training
    return training.model_copy(update={"verdict": "undecided", "probabilities": {}, "contradicted_by": first})


def _like(basis: Basis, model: str, precision: str, source: str) -> Training:
    """Return that a model was trained as a relative of it was, as likely as such an answer was right."""
    rest = [name for name in PRECISIONS[:3] if name != precision]
    return Training(
        verdict=precision,
        probabilities={precision: confidence()} | {name: (1 - confidence()) / len(rest) for name in rest},
        basis=basis,
        source=source,
        nearest=model,
        nearest_precision=precision,
    )
