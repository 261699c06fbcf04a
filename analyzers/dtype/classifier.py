"""Classifier of the training precision: from magnitudes to probabilities, in plain Python from reference/classifier.json.

Logistic regression on log10 of the extremes, standardised: with z_f = (log10 x_f - mean_f) / scale_f, a precision c that magnitudes can
tell apart has

    P(c) = (1 - r) softmax_c(intercept_c + sum_f weight_cf z_f),

where r is the share left to the precisions that they cannot: those have a single family among the labelled models (fp32), so models that
resemble it may as well share that family's own recipe. They keep their share of the families. `tools.classifier` makes the
file and measures its accuracy.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from math import dist, exp, isfinite, log10
from typing import Any, Literal

from analyzers.core.records import Record
from analyzers.dtype.labelled_models import REFERENCE, Example, Magnitude

Reason = Literal["clear", "unclear", "unsupported", "unlearned"]

FITTED = REFERENCE / "classifier.json"
# log10 needs a positive number: a zero counts as this, which is below every nonzero extreme of the labelled models.
FLOOR = 1e-14
# No precision is claimed below this probability: from 0.7 on, 4 of 13 claims about models of families left out were wrong, from 0.8 all 3.
CONFIDENT = 0.9


class Feature(Record):
    """One magnitude. mean, scale: of its log10; weights: of its standardised log10, by precision."""

    name: Magnitude
    mean: float
    scale: float
    weights: dict[str, float]


@dataclass(frozen=True, slots=True)
class Estimate:
    """An answer of the classifier.

    verdict: a precision, or "undecided"; probabilities: by precision, they sum to 1. reason: "clear"; "unclear" if no precision is likely
    enough (`CONFIDENT`); "unsupported" if the nearest labelled model is too far away, with the shares of the families as probabilities;
    "unlearned" if the likeliest is one that magnitudes cannot show. nearest, distance: the nearest labelled model, and its distance in
    standard deviations.
    """

    verdict: str
    probabilities: dict[str, float]
    reason: Reason
    nearest: Example
    distance: float


class Classifier(Record):
    """Coefficients of the classifier, and the models they were fitted on.

    intercepts: for the precisions that magnitudes tell apart. rates: shares of the families, with one family added to each precision.
    examples: the labelled models. reach: largest distance from an example, in standard deviations, at which the classifier answers; null if
    it answers at any.
    """

    features: tuple[Feature, ...]
    intercepts: dict[str, float]
    rates: dict[str, float]
    reach: float | None
    examples: tuple[Example, ...]

    def point(self, magnitudes: Mapping[str, float]) -> tuple[float, ...]:
        """Return the standardised logarithms of the magnitudes used. Raises KeyError if one is missing."""
        return tuple((log10(max(magnitudes[f.name], FLOOR)) - f.mean) / f.scale for f in self.features)

    def probabilities(self, magnitudes: Mapping[str, float]) -> dict[str, float]:
        """Apply the formula of the module at any distance from labelled models; probabilities are in the order of ``rates``."""
        z = self.point(magnitudes)
        scores = {
            name: intercept + sum(f.weights[name] * x for f, x in zip(self.features, z, strict=True))
            for name, intercept in self.intercepts.items()
        }
        top = max(scores.values())
        powers = {name: exp(score - top) for name, score in scores.items()}
        left = sum(self.rates[name] for name in scores) / sum(powers.values())
        return {name: left * powers[name] if name in powers else rate for name, rate in self.rates.items()}

    @cached_property
    def _points(self) -> list[tuple[float, ...]]:
        return [self.point(example.model_dump()) for example in self.examples]

    def nearest(self, magnitudes: Mapping[str, float]) -> tuple[Example, float]:
        """Return the nearest example and its distance, in standard deviations."""
        z = self.point(magnitudes)
        distances = [dist(z, point) for point in self._points]
        least = min(range(len(distances)), key=lambda i: distances[i])
        return self.examples[least], distances[least]

    def estimate(self, magnitudes: Mapping[str, float]) -> Estimate:
        """Classify the magnitudes, or say why they do not suffice. They must be finite and not negative."""
        nearest, distance = self.nearest(magnitudes)
        if self.reach is not None and distance > self.reach:
            return Estimate("undecided", dict(self.rates), "unsupported", nearest, distance)
        found = self.probabilities(magnitudes)
        likeliest = max(found, key=lambda name: found[name])
        if likeliest not in self.intercepts:
            return Estimate("undecided", found, "unlearned", nearest, distance)
        if found[likeliest] < CONFIDENT:
            return Estimate("undecided", found, "unclear", nearest, distance)
        return Estimate(likeliest, found, "clear", nearest, distance)


@cache
def _shipped() -> dict[str, Any]:
    """Read the file that ships."""
    found: dict[str, Any] = json.loads(FITTED.read_bytes())
    return found


@cache
def fitted() -> Classifier:
    """Return the classifier that ships."""
    return Classifier.model_validate(_shipped()["classifier"])


class Relatives(Record):
    """How often a relative answered for a labelled model that was left out, and was right."""

    answered: int
    right: int


@cache
def confidence() -> float:
    """Return the probability that an answer by a relative is right: (right + 1) / (answered + 2)."""
    measured = Relatives.model_validate(_shipped()["relatives"])
    return (measured.right + 1) / (measured.answered + 2)


def magnitudes_of(values: Mapping[str, float | None]) -> dict[str, float] | None:
    """Select the magnitudes that the classifier uses from ``values``; None if one of them is missing or infinite."""
    used: dict[str, float] = {}
    for feature in fitted().features:
        value = values.get(feature.name)
        if value is None or not isfinite(value):
            return None
        used[feature.name] = value
    return used
