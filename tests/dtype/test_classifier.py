"""The classifier: plain Python and the shipped fit against scikit-learn, where it abstains, and the labels that it is fitted on."""

import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import config_context  # type: ignore[import-untyped]
from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]

from analyzers.dtype.classifier import CONFIDENT, Classifier, Feature, fitted, magnitudes_of
from analyzers.dtype.labelled_models import Example, family_of, labelled_extremes, labels, precision_of
from tools.classifier import PENALTIES, Fit, OutOfFold, candidates, evaluated, fit, rule_correct

ROOT = Path(__file__).parents[2]
SHIPPED, ROWS = fitted(), evaluated().evaluation.out_of_fold
CLASSES = ["fp16", "bf16", "fp32"]
FloatArray = npt.NDArray[np.float64]
magnitudes = st.floats(0, 1e300)


def of(abs_max: float, norm_max: float) -> dict[str, float]:
    """All four magnitudes, two of them as given."""
    return {"abs_min": 0.0, "abs_max": abs_max, "norm_min": 1.0, "norm_max": norm_max}


def by_hand(precisions: tuple[str, ...] = ("fp16", "bf16", "fp32")) -> Classifier:
    """A classifier that tells ``precisions`` apart by two magnitudes, with one labelled model of each at round places."""
    weights = {name: i + 1.0 for i, name in enumerate(precisions)}
    models = tuple(
        Example(model=name, family=name, precision=name, abs_min=0, abs_max=10.0**i, norm_min=1, norm_max=10.0**i)
        for i, name in enumerate(CLASSES)
    )
    return Classifier(
        features=(
            Feature(name="abs_max", mean=0.5, scale=2.0, weights=weights),
            Feature(name="norm_max", mean=1.0, scale=0.5, weights={name: -2 * each for name, each in weights.items()}),
        ),
        intercepts={name: 0.3 * i for i, name in enumerate(precisions)},
        rates={"fp16": 0.5, "bf16": 0.3, "fp32": 0.2},
        reach=1.0,
        examples=models,
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
def test_probabilities_are_probabilities_and_what_ships_claims_nothing(abs_max: float, norm_max: float) -> None:
    for classifier in (SHIPPED, by_hand()):
        found = classifier.estimate(of(abs_max, norm_max))
        assert math.isclose(sum(found.probabilities.values()), 1, rel_tol=1e-12)
        assert all(0 <= each <= 1 for each in found.probabilities.values())
        assert (found.verdict == "undecided") == (found.reason != "clear")
        assert found.verdict == "undecided" or found.probabilities[found.verdict] >= CONFIDENT
    assert SHIPPED.estimate(of(abs_max, norm_max)).verdict == "undecided"


def test_it_claims_what_is_likely_and_abstains_far_away() -> None:
    sure = by_hand(("fp16", "bf16")).model_copy(update={"rates": {"fp16": 0.5, "bf16": 0.49, "fp32": 0.01}})
    assert sure.estimate(of(1.0, 1.0)).verdict == "bf16"
    near = SHIPPED.estimate(of(1.0, 361.9))
    assert (near.nearest.model, near.reason) == ("facebook/opt-1.3b", "unclear") and near.distance == pytest.approx(0, abs=1e-9)
    for point in (of(1e9, 1e12), of(1e-6, 1e-3), of(5e4, 100.0), of(0.0, 0.0), of(1e300, 1e300)):
        far = SHIPPED.estimate(point)
        assert (far.reason, far.probabilities) == ("unsupported", SHIPPED.rates) and far.distance > 1
    for missing in (None, math.inf, math.nan):
        assert magnitudes_of({**of(2.0, 3.0), "norm_max": missing}) is None


def predict(train: Sequence[OutOfFold], test: Sequence[OutOfFold], names: Sequence[str], penalty: float) -> FloatArray:
    """(len(test), 3) probabilities in the order of CLASSES, by another solver and other formulas than the product's."""

    def design(rows: Sequence[OutOfFold]) -> FloatArray:
        values = np.array([[getattr(row, name) for name in names] for row in rows])
        return np.log10(np.where(values == 0, 1e-14, values))

    weight = np.array([1 / sum(other.family == row.family for other in train) for row in train])
    share = np.array([1 + sum(w for w, row in zip(weight, train, strict=True) if row.precision == name) for name in CLASSES])
    share /= share.sum()
    x, y = design(train), design(test)
    centre = (x * weight[:, None]).sum(0) / weight.sum()
    spread = np.sqrt(((x - centre) ** 2 * weight[:, None]).sum(0) / weight.sum())
    x, y = (x - centre) / spread, (y - centre) / spread
    told = [i for i, row in enumerate(train) if row.precision != "fp32"]
    own = np.array([1 / sum(train[j].family == train[i].family for j in told) for i in told])
    model = LogisticRegression(C=penalty, solver="lbfgs", tol=1e-9, max_iter=100_000)
    with config_context(assume_finite=True, skip_parameter_validation=True):
        model.fit(x[told], [train[i].precision == "bf16" for i in told], sample_weight=own)
        bf16 = model.predict_proba(y)[:, 1]
    found = np.stack([(1 - share[2]) * (1 - bf16), (1 - share[2]) * bf16, np.full(len(test), share[2])], axis=1)
    found[np.min(np.sqrt(((y[:, None] - x[None]) ** 2).sum(2)), axis=1) > 1] = share
    return np.asarray(found, dtype=np.float64)


def test_every_prediction_is_of_a_family_left_out() -> None:
    for family in {row.family for row in ROWS}:
        inside = [row for row in ROWS if row.family == family]
        outside = [row for row in ROWS if row.family != family]
        names, penalty = inside[0].features, inside[0].penalty
        assert {(row.features, row.penalty) for row in inside} == {(names, penalty)}
        found = [[row.probabilities[name] for name in CLASSES] for row in inside]
        np.testing.assert_allclose(found, predict(outside, inside, names, penalty), rtol=1e-4, atol=1e-6)


def test_coefficients_are_those_of_another_solver() -> None:
    classifier, penalty = evaluated().classifier, evaluated().penalty
    points = [row for row in ROWS if row.reason != "unsupported"]
    expected = predict(ROWS, points, [feature.name for feature in classifier.features], penalty)
    for each in (classifier, fit(classifier.examples, candidates()[PENALTIES.index(penalty)])):
        found = [[each.probabilities(row.model_dump())[name] for name in CLASSES] for row in points]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    found_right = sum(max(row.probabilities, key=row.probabilities.__getitem__) == row.precision for row in ROWS)
    assert (found_right, rule_correct(ROWS), sum(row.rule == row.precision for row in ROWS)) == (23, 24, 22)


@pytest.mark.exhaustive
@pytest.mark.timeout(240)
def test_what_ships_is_what_the_command_writes(tmp_path: Path) -> None:
    """The solver stops within 1e-10 of a gradient of 0, so that two solutions are within 4e-7, whatever the order of sums."""
    file = tmp_path / "classifier.json"
    command = [sys.executable, "-W", "error", "-m", "tools.classifier", "--out", str(file)]
    subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=200, check=True)
    made = Fit.model_validate_json(file.read_bytes())
    for point in (of(1.0, 400.0), of(200.0, 5e4), of(3.0, 900.0)):
        assert made.classifier.probabilities(point) == pytest.approx(SHIPPED.probabilities(point), abs=1e-6)
    assert [row.model for row in made.evaluation.out_of_fold] == [row.model for row in ROWS]


def test_labelled_models_have_families_and_agree_with_the_table() -> None:
    listed = (ROOT / "analyzers/dtype/reference/families.csv").read_text(encoding="utf-8").splitlines()[1:]
    assert sorted(line.split(",")[0] for line in listed) == sorted(model.model for model in labelled_extremes()) and len(listed) == 29
    assert family_of("GOOGLE/mT5-Small") == family_of("google-t5/t5-base") != family_of("gsarti/it5-base")
    assert family_of("somebody/new") == family_of("Somebody/other") == "somebody"
    both = [model for model in labelled_extremes() if model.model.lower() in labels()]
    assert len(both) == 23 and all(precision_of(labels()[each.model.lower()].precision) == each.precision for each in both)
    assert labels()["meta-llama/llama-2-7b-hf"].precision == "bf16"
