"""The well-known rule of thumb on magnitudes, and its thresholds chosen anew for a set of labelled models."""

from collections.abc import Iterable, Sequence
from itertools import pairwise, product
from math import inf, log10, sqrt
from typing import NamedTuple

from analyzers.dtype_detection.labelled_models import Example


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


def rule_correct(models: Iterable[Example], thresholds: Thresholds = PUBLISHED) -> int:
    """Count the models whose labelled precision the rule predicts."""
    return sum(rule(model.abs_max, model.norm_max, thresholds) == model.precision for model in models)


def best_thresholds(models: Sequence[Example]) -> tuple[Thresholds, ...]:
    """Return the thresholds that are right for most of ``models``, those nearest to the published ones first.

    Candidates are the geometric means of neighbouring values, 0 and infinity, which make every split that thresholds can make.
    """
    tried = [
        Thresholds(a, n) for a, n in product(_between(model.abs_max for model in models), _between(model.norm_max for model in models))
    ]
    right = {each: rule_correct(models, each) for each in tried}
    most = max(right.values())
    return tuple(sorted((each for each in tried if right[each] == most), key=_departure))


def _between(values: Iterable[float]) -> list[float]:
    ordered = sorted(set(values))
    return [0.0, *(sqrt(low) * sqrt(high) for low, high in pairwise(ordered)), inf]


def _departure(thresholds: Thresholds) -> float:
    """Return the distance from the published thresholds in decades; 0 and infinity count as farthest."""
    return sum(
        abs(log10(mine) - log10(published)) if 0 < mine < inf else 1e3 for mine, published in zip(thresholds, PUBLISHED, strict=True)
    )
