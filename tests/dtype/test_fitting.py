"""The shipped classifier is what the command writes, and its figures are what scikit-learn says, computed another way."""

import subprocess
import sys
from collections.abc import Sequence
from itertools import product
from math import log
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from sklearn import config_context  # type: ignore[import-untyped]
from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]
from sklearn.metrics import log_loss  # type: ignore[import-untyped]

from analyzers.dtype.labelled_models import family_of, labelled_extremes, labels, precision_of
from analyzers.dtype.training_precision import PUBLISHED, rule
from tests.dtype.fits import assert_same_fit
from tools.classifier import (
    PENALTIES,
    REACH,
    RECIPES,
    Fit,
    OutOfFold,
    best_thresholds,
    candidates,
    evaluated,
    fit,
    rule_correct,
)

ROOT = Path(__file__).parents[2]
ROWS = evaluated().evaluation.out_of_fold
CLASSES = ["fp16", "bf16", "fp32"]

FloatArray = npt.NDArray[np.float64]


# --- the command --------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.timeout(240)
def test_what_ships_is_what_the_command_writes(tmp_path: Path) -> None:
    file = tmp_path / "classifier.json"
    command = [sys.executable, "-W", "error", "-m", "tools.classifier", "--out", str(file)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=200, check=True)
    assert "likeliest right for 23 (the rule: 22)" in done.stdout
    made = Fit.model_validate_json(file.read_bytes())
    assert_same_fit(evaluated(), made)
    assert made.command in Path(ROOT / "tools/classifier.py").read_text()


# --- reference data -----------------------------------------------------------------------------------------------


def test_every_labelled_model_has_a_family_of_its_own_choice() -> None:
    assert len(labelled_extremes()) == 29
    listed = (ROOT / "analyzers/dtype/reference/families.csv").read_text(encoding="utf-8").splitlines()[1:]
    assert sorted(line.split(",")[0] for line in listed) == sorted(model.model for model in labelled_extremes())
    assert all(line.count(",") == 4 and all(line.split(",")) for line in listed)
    assert family_of("GOOGLE/mT5-Small") == family_of("google-t5/t5-base") == family_of("bigscience/T0_3B") != family_of("gsarti/it5-base")
    assert family_of("somebody/new") == family_of("Somebody/other") == "somebody"


def test_labels_and_extremes_agree() -> None:
    both = [model for model in labelled_extremes() if model.model.lower() in labels()]
    assert len(both) == 23
    for model in both:
        assert precision_of(labels()[model.model.lower()].precision) == model.precision


# --- predictions, recomputed --------------------------------------------------------------------------------------


def design(rows: Sequence[OutOfFold], names: Sequence[str]) -> FloatArray:
    """log10 of the magnitudes; a zero as 1e-14."""
    values = np.array([[getattr(row, name) for name in names] for row in rows])
    return np.log10(np.where(values == 0, 1e-14, values))


def predict(train: Sequence[OutOfFold], test: Sequence[OutOfFold], names: Sequence[str], penalty: float) -> FloatArray:
    """(len(test), 3) probabilities in the order of CLASSES, by another solver and other formulas than the product's."""
    weight = np.array([1 / sum(other.family == row.family for other in train) for row in train])
    share = np.array([1 + sum(w for w, row in zip(weight, train, strict=True) if row.precision == name) for name in CLASSES])
    share /= share.sum()
    x, y = design(train, names), design(test, names)
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
    far = np.min(np.sqrt(((y[:, None] - x[None]) ** 2).sum(2)), axis=1) > 1
    found[far] = share
    return np.asarray(found, dtype=np.float64)


def loss(train: Sequence[OutOfFold], names: Sequence[str], penalty: float) -> float:
    """Log-loss on families left out, as a mean over families."""
    losses = []
    for family in {row.family for row in train}:
        inside = [row for row in train if row.family == family]
        found = predict([row for row in train if row.family != family], inside, names, penalty)
        losses.append(np.mean([-log(found[i, CLASSES.index(row.precision)]) for i, row in enumerate(inside)]))
    return float(np.mean(losses))


@pytest.mark.parametrize("family", sorted({row.family for row in ROWS}))
def test_every_prediction_is_of_a_family_left_out(family: str) -> None:
    inside = [row for row in ROWS if row.family == family]
    outside = [row for row in ROWS if row.family != family]
    names, penalty = inside[0].features, inside[0].penalty
    assert {(row.features, row.penalty) for row in inside} == {(names, penalty)}
    expected = predict(outside, inside, names, penalty)
    np.testing.assert_allclose([[row.probabilities[name] for name in CLASSES] for row in inside], expected, rtol=1e-4, atol=1e-6)
    weights = [1 / sum(other.family == row.family for other in outside) for row in outside]
    for row in inside:
        for name in CLASSES:
            own = sum(w for w, other in zip(weights, outside, strict=True) if other.precision == name)
            assert row.prior[name] == pytest.approx((1 + own) / (3 + sum(weights)), rel=1e-12)


def test_coefficients_are_those_of_another_solver() -> None:
    classifier, penalty = evaluated().classifier, evaluated().penalty
    names = [feature.name for feature in classifier.features]
    points = [row for row in ROWS if row.reason != "unsupported"]
    expected = predict(ROWS, points, names, penalty)
    found = [[classifier.probabilities(row.model_dump())[name] for name in CLASSES] for row in points]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    assert classifier.reach == REACH == 1
    assert_same_fit(classifier, fit(classifier.examples, candidates()[PENALTIES.index(penalty)]))
    assert min(((recipe, c) for recipe, c in product(RECIPES, PENALTIES)), key=lambda each: loss(ROWS, each[0].features, each[1])) == (
        RECIPES[0],
        penalty,
    )


# --- figures ------------------------------------------------------------------------------------------------------


def test_figures_follow_from_the_predictions() -> None:
    found = evaluated().evaluation
    truth = [row.precision for row in ROWS]
    ordered = sorted(CLASSES)

    def loss_of(tables: Sequence[dict[str, float]]) -> float:
        return float(log_loss(truth, [[table[name] for name in ordered] for table in tables], labels=ordered))

    assert found.log_loss.models == pytest.approx(loss_of([row.probabilities for row in ROWS]), rel=1e-9)
    assert found.prior_log_loss.models == pytest.approx(loss_of([row.prior for row in ROWS]), rel=1e-9)
    assert found.even_log_loss == pytest.approx(loss_of([dict.fromkeys(CLASSES, 1 / 3)] * len(ROWS)), rel=1e-9)
    by_family = [np.mean([-log(row.probabilities[row.precision]) for row in ROWS if row.family == f]) for f in {r.family for r in ROWS}]
    assert found.log_loss.families == pytest.approx(np.mean(by_family), rel=1e-12)
    assert found.likeliest_correct == sum(max(r.probabilities, key=r.probabilities.__getitem__) == r.precision for r in ROWS) == 23
    assert (found.models, found.families) == (29, len({row.family for row in ROWS}))


# --- the rule of thumb --------------------------------------------------------------------------------------------


def test_the_rule_is_right_for_24_in_sample_and_22_out_of_sample() -> None:
    assert rule_correct(ROWS) == evaluated().evaluation.rule_in_sample == 24
    assert sum(row.rule == row.precision for row in ROWS) == evaluated().evaluation.rule_correct == 22


def test_thresholds_are_the_best_there_are() -> None:
    best = best_thresholds(ROWS)
    grid = np.logspace(-1, 6, 60)
    assert rule_correct(ROWS, best[0]) >= max(
        sum(rule(row.abs_max, row.norm_max, PUBLISHED._replace(abs_max=a, norm_max=n)) == row.precision for row in ROWS)
        for a, n in product(grid, grid)
    )
    assert len({rule_correct(ROWS, each) for each in best}) == 1
