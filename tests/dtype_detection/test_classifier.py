"""From magnitudes to probabilities: plain Python against scikit-learn, and where the classifier abstains."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]

from analyzers.dtype_detection.classifier import CONFIDENT, Classifier, Feature, fitted, magnitudes_of
from analyzers.dtype_detection.labelled_models import Example

SHIPPED = fitted()
magnitudes = st.floats(0, 1e300)


def of(abs_max: float, norm_max: float) -> dict[str, float]:
    """All four magnitudes, two of them as given."""
    return {"abs_min": 0.0, "abs_max": abs_max, "norm_min": 1.0, "norm_max": norm_max}


def by_hand(precisions: tuple[str, ...] = ("fp16", "bf16", "fp32")) -> Classifier:
    """A classifier that tells ``precisions`` apart by two magnitudes, with one labelled model of each at round places."""
    weights = {name: i + 1.0 for i, name in enumerate(precisions)}
    examples = tuple(
        Example(model=name, family=name, precision=name, abs_min=0, abs_max=10.0**i, norm_min=1, norm_max=10.0**i)
        for i, name in enumerate(("fp16", "bf16", "fp32"))
    )
    return Classifier(
        features=(
            Feature(name="abs_max", mean=0.5, scale=2.0, weights=weights),
            Feature(name="norm_max", mean=1.0, scale=0.5, weights={name: -2 * each for name, each in weights.items()}),
        ),
        intercepts={name: 0.3 * i for i, name in enumerate(precisions)},
        rates={"fp16": 0.5, "bf16": 0.3, "fp32": 0.2},
        reach=1.0,
        examples=examples,
    )


@pytest.mark.parametrize("classifier", [SHIPPED, by_hand(), by_hand(("fp16", "bf16"))], ids=["shipped", "three", "two"])
def test_probabilities_are_scikit_learns(classifier: Classifier) -> None:
    names = sorted(classifier.intercepts)
    told = LogisticRegression()
    told.classes_ = np.array(names)
    told.coef_ = np.array([[feature.weights[name] for feature in classifier.features] for name in names])
    told.intercept_ = np.array([classifier.intercepts[name] for name in names])
    if len(names) == 2:
        told.coef_, told.intercept_ = np.diff(told.coef_, axis=0), np.diff(told.intercept_)
    points = [of(10**a, 10**n) for a, n in np.random.default_rng(0).uniform(-4, 7, (200, 2))]
    logs = np.log10([[point[feature.name] for feature in classifier.features] for point in points])
    z = (logs - [feature.mean for feature in classifier.features]) / [feature.scale for feature in classifier.features]
    expected = told.predict_proba(z) * sum(classifier.rates[name] for name in names)
    found = [classifier.probabilities(point) for point in points]
    np.testing.assert_allclose([[each[name] for name in names] for each in found], expected, rtol=1e-12, atol=1e-15)
    for name in set(classifier.rates) - set(names):
        assert {each[name] for each in found} == {classifier.rates[name]}


@given(magnitudes, magnitudes)
def test_probabilities_are_probabilities(abs_max: float, norm_max: float) -> None:
    for classifier in (SHIPPED, by_hand()):
        found = classifier.estimate(of(abs_max, norm_max))
        assert math.isclose(sum(found.probabilities.values()), 1, rel_tol=1e-12)
        assert all(0 <= each <= 1 for each in found.probabilities.values())
        assert (found.verdict == "undecided") == (found.reason != "clear")
        if found.verdict != "undecided":
            assert found.probabilities[found.verdict] >= CONFIDENT
            assert found.verdict in classifier.intercepts


@given(magnitudes, magnitudes)
def test_what_ships_claims_nothing(abs_max: float, norm_max: float) -> None:
    found = SHIPPED.estimate(of(abs_max, norm_max))
    assert found.verdict == "undecided" and max(found.probabilities.values()) <= 1 - SHIPPED.rates["fp32"] < CONFIDENT
    assert found.probabilities["fp32"] == SHIPPED.rates["fp32"]


def test_a_likely_precision_is_claimed() -> None:
    sure = by_hand(("fp16", "bf16")).model_copy(update={"rates": {"fp16": 0.5, "bf16": 0.49, "fp32": 0.01}})
    found = sure.estimate(of(1.0, 1.0))
    assert (found.verdict, found.reason) == ("bf16", "clear") and found.probabilities["bf16"] > CONFIDENT


def test_near_labelled_models_it_resembles_them() -> None:
    small, large = SHIPPED.estimate(of(1.0, 400.0)), SHIPPED.estimate(of(200.0, 5e4))
    assert max(small.probabilities, key=lambda name: small.probabilities[name]) == "fp16" and small.reason == "unclear"
    assert max(large.probabilities, key=lambda name: large.probabilities[name]) == "bf16" and large.reason == "unclear"
    own = SHIPPED.estimate(of(1.0, 361.9))
    assert own.nearest.model == "facebook/opt-1.3b" and own.distance == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("point", [of(1e9, 1e12), of(1e-6, 1e-3), of(1.0, 1e6), of(5e4, 100.0), of(0.0, 0.0), of(1e300, 1e300)])
def test_far_from_every_labelled_model_it_abstains(point: dict[str, float]) -> None:
    found = SHIPPED.estimate(point)
    assert (found.verdict, found.reason) == ("undecided", "unsupported")
    assert found.probabilities == SHIPPED.rates and found.distance > 1
    everywhere = SHIPPED.model_copy(update={"reach": None})
    assert everywhere.estimate(point).reason != "unsupported"


def test_magnitudes_must_be_known() -> None:
    values: dict[str, float | None] = {**of(2.0, 3.0), "abs_min_nonzero": None}
    assert magnitudes_of(values) == {"abs_max": 2.0, "norm_max": 3.0}
    for missing in (None, math.inf, math.nan):
        assert magnitudes_of(values | {"norm_max": missing}) is None
    assert magnitudes_of({}) is None
