"""In which precision a model was trained: a label where there is one, else an inference, with its basis named.

Weights reveal the precision of the stored copy, not of the compute; so this is kept apart from lineage.
"""

import csv
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from analyzers.dtype_detection.report import Extremes, Lineage, Training

_REFERENCE = Path(__file__).parent / "reference"

PRECISIONS = ("fp16", "bf16", "fp32", "fp8")

# What passing through a format says about training in it. No count of models backs this number: it is a stated
# assumption, that one in ten of such copies was made by somebody who had trained in another precision.
LINEAGE_CONFIDENCE = 0.9


@dataclass(frozen=True, slots=True)
class Label:
    """A known training precision ("fp16-mixed", "bf16", ...) and where that is said."""

    precision: str
    evidence: str


@dataclass(frozen=True, slots=True)
class LabelledExtremes:
    """A model of known training precision with the extremes of its weights (rows of weight_extremes.csv)."""

    model: str
    precision: str
    abs_min: float
    abs_max: float
    norm_min: float
    norm_max: float


@cache
def labels() -> dict[str, Label]:
    """Known training precisions by lower-case model id (training_precision_labels.csv; sources in each row)."""
    with (_REFERENCE / "training_precision_labels.csv").open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        return {row["model_id"].lower(): Label(row["training_precision"], row["evidence"]) for row in rows}


@cache
def labelled_extremes() -> tuple[LabelledExtremes, ...]:
    """The 29 labelled models of the reference table (stas00/ml-ways)."""
    with (_REFERENCE / "weight_extremes.csv").open(newline="", encoding="utf-8") as file:
        return tuple(
            LabelledExtremes(
                row["model_id"],
                row["training_precision"],
                *(float(row[name]) for name in ("abs_min", "abs_max", "norm_min", "norm_max")),
            )
            for row in csv.DictReader(file)
        )


def rule(abs_max: float, norm_max: float) -> str:
    """The well-known rule: abs max > 1e2 means bf16; else norm max < 1e3 means fp16; else fp32 (stas00/ml-ways)."""
    if abs_max > 1e2:
        return "bf16"
    return "fp16" if norm_max < 1e3 else "fp32"


@cache
def rule_outcomes() -> dict[str, Counter[str]]:
    """What the labelled models were, by what the rule says of them."""
    outcomes: dict[str, Counter[str]] = {name: Counter() for name in ("fp16", "bf16", "fp32")}
    for model in labelled_extremes():
        outcomes[rule(model.abs_max, model.norm_max)][model.precision] += 1
    return outcomes


def _probabilities(said: str) -> dict[str, float]:
    """P(trained in p | the rule says ``said``): counts over the labelled models, one added to each of three."""
    counts = rule_outcomes()[said]
    known = ("fp16", "bf16", "fp32")
    total = sum(counts.values()) + len(known)
    return {name: (counts[name] + 1) / total for name in known}


def _mostly(precision: str) -> dict[str, float]:
    rest = [name for name in PRECISIONS[:3] if name != precision]
    return {precision: LINEAGE_CONFIDENCE} | {name: (1 - LINEAGE_CONFIDENCE) / len(rest) for name in rest}


def infer_training(label: Label | None, lineage: Lineage, base: Extremes, dtypes: dict[str, int]) -> Training:
    """Label, then lineage, then the rule; the first that applies.

    base: extremes of the base model (no LM head), as in the reference table. dtypes: parameters by stored dtype.
    """
    if label is not None:
        family = label.precision.split("-")[0]
        return Training(
            verdict=label.precision,
            probabilities={family: 1.0} if family in PRECISIONS else {},
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
    if lineage.verdict in ("native", "fp16-ancestor") and base.abs_max is not None and base.norm_max is not None:
        said = rule(base.abs_max, base.norm_max)
        models = labelled_extremes()
        within = min(m.norm_max for m in models) <= base.norm_max <= max(m.norm_max for m in models)
        counts = rule_outcomes()[said]
        if within:
            return Training(
                verdict=said,
                probabilities=_probabilities(said),
                basis="rule",
                explanation=(
                    f"By the rule of thumb on magnitudes (largest weight {base.abs_max:.3g}, largest norm {base.norm_max:.3g}): "
                    f"of {sum(counts.values())} labelled models it calls {said}, {counts[said]} are."
                ),
                source="stas00/ml-ways",
            )
    return Training(
        verdict="undecided",
        probabilities={},
        basis="none",
        explanation="No label, and neither the bits nor magnitudes like those of labelled models say more.",
        source=None,
    )


def _passed(lineage: Lineage, dtypes: dict[str, int]) -> str | None:
    """The 16- or 8-bit format that most parameters are stored in or have passed through last, if the bits decide."""
    if lineage.stored.startswith("F8_"):
        return "fp8"
    if lineage.verdict == "undecided":
        return "bf16" if lineage.stored == "BF16" else None
    if lineage.verdict == "mixed":
        ancestors: dict[str, int] = {}
        for part in lineage.parts:
            if part.verdict in ("upcast-from-bf16", "downcast-from-bf16"):
                ancestors["bf16"] = ancestors.get("bf16", 0) + part.parameters
            elif part.verdict in ("upcast-from-fp16", "fp16-ancestor"):
                ancestors["fp16"] = ancestors.get("fp16", 0) + part.parameters
            elif part.verdict == "fp8-ancestor":
                ancestors["fp8"] = ancestors.get("fp8", 0) + part.parameters
        leading = max(ancestors, key=lambda name: ancestors[name], default=None)
        if leading and 2 * ancestors[leading] > sum(dtypes.values()):
            return leading
        return {"BF16": "bf16", "F16": "fp16"}.get(lineage.stored)
    if lineage.verdict == "fp8-ancestor":
        return "fp8"
    for name in ("bf16", "fp16"):
        if name in lineage.passed_through:
            return name
    return {"BF16": "bf16", "F16": "fp16"}.get(lineage.stored)
