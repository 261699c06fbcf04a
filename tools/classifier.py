"""Fits the classifier: ``python -m tools.classifier [--labels FILE] [--out FILE]``.

Reads reference/weight_extremes.csv, reference/families.csv and labels, and writes reference/classifier.json: coefficients, the models they
were fitted on, and their accuracy on held-out families. It takes about ten seconds. The same input gives the same numbers on every machine,
except for the last digits, which depend on the processor.

The family is the unit throughout: its models share a weight of 1 in the fit, in the shares and in the choice of C. Arrays: x (models,
features) is log10 of the magnitudes, z is x standardised.
"""

import argparse
import csv
import json
import platform
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise, product
from math import inf, log, log10, sqrt
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import sklearn  # type: ignore[import-untyped]
from sklearn import config_context
from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]

from analyzers.core.atomic_files import replacing
from analyzers.core.errors import InvalidRequest, MantissaError
from analyzers.core.records import Record
from analyzers.core.terminal import print_line
from analyzers.dtype.classifier import FITTED, FLOOR, Classifier, Estimate, Feature, Relatives
from analyzers.dtype.labelled_models import (
    LABELS,
    MAGNITUDES,
    Example,
    Magnitude,
    families,
    family_of,
    labelled_extremes,
    magnitudes,
    precision_of,
    similar_model,
)
from analyzers.dtype.training_precision import PUBLISHED, Thresholds, rule

COMMAND = "python -m tools.classifier"
# scikit-learn's C, the inverse strength of the L2 penalty
PENALTIES = (0.01, 0.1, 1.0, 10.0, 100.0)
# Precisions that the classifier knows; fp8 is seen in the bits or in a label.
CLASSES = ("fp16", "bf16", "fp32")

FloatArray = npt.NDArray[np.float64]


class OutOfFold(Example):
    """One labelled model, predicted by a fit without its family.

    probabilities, reason: see `classifier.Estimate`; features, penalty: chosen in that fold; prior: shares of the other families; rule:
    answer of the rule of thumb with thresholds chosen without the family.
    """

    probabilities: dict[str, float]
    reason: str
    features: tuple[str, ...]
    penalty: float
    prior: dict[str, float]
    rule: str


class Loss(Record):
    """Mean of -ln P(the labelled precision) in nats: over models, and over families of the mean over their models."""

    models: float
    families: float


class Evaluation(Record):
    """Leave-one-family-out evaluation.

    likeliest_correct: number of models whose likeliest precision is the labelled one. rule_correct: number that the rule gets right, with
    thresholds chosen in the same folds; rule_in_sample: with the published ones. log_loss: of the probabilities; prior_log_loss: of the
    shares of the other families; even_log_loss: of an equal share for each precision.
    """

    models: int
    families: int
    likeliest_correct: int
    rule_correct: int
    rule_in_sample: int
    log_loss: Loss
    prior_log_loss: Loss
    even_log_loss: float
    out_of_fold: tuple[OutOfFold, ...]


class Fit(Record):
    """Content of reference/classifier.json.

    command: the command that writes the file. versions: of the software that fitted it. penalty: C, the inverse strength of the L2 penalty;
    penalties: the values it was chosen from. relatives: how often a relative was right; evaluation: leave-one-family-out.
    """

    command: str
    versions: dict[str, str]
    penalty: float
    penalties: tuple[float, ...]
    classifier: Classifier
    relatives: Relatives
    evaluation: Evaluation


class Recipe(NamedTuple):
    """Design of a classifier: its features, the precisions they tell apart (others keep their shares), and its reach."""

    features: tuple[Magnitude, ...]
    learned: tuple[str, ...]
    reach: float | None


class Candidate(NamedTuple):
    """A recipe with a penalty."""

    recipe: Recipe
    penalty: float


TWO: tuple[Magnitude, ...] = ("abs_max", "norm_max")
FOUR = MAGNITUDES
LEARNED = ("fp16", "bf16")
# One standard deviation of the labelled models. Chosen with the results of several designs in view, as the methods say.
REACH = 1.0
RECIPES = (Recipe(TWO, LEARNED, REACH), Recipe(FOUR, LEARNED, REACH))


def candidates(recipes: Iterable[Recipe] = RECIPES) -> tuple[Candidate, ...]:
    """List every recipe with every penalty, the strongest first."""
    return tuple(Candidate(recipe, penalty) for recipe, penalty in product(recipes, PENALTIES))


def fit(examples: tuple[Example, ...], candidate: Candidate) -> Classifier:
    """Fit one classifier by the L2-penalised log-loss of the precisions that it tells apart, with weight 1 for each family."""
    recipe, penalty = candidate
    return _fit(examples, recipe.features, recipe.learned, penalty).model_copy(update={"reach": recipe.reach})


@cache  # nested folds leave out every two families twice, in either order
def _fit(examples: tuple[Example, ...], features: tuple[Magnitude, ...], precisions: tuple[str, ...], penalty: float) -> Classifier:
    x = np.log10(np.maximum([[getattr(example, name) for name in features] for example in examples], FLOOR))
    mean = np.average(x, axis=0, weights=_weights(examples))
    deviation = np.sqrt(np.average((x - mean) ** 2, axis=0, weights=_weights(examples)))
    scale = np.where(deviation > 0, deviation, 1.0)
    learned = [i for i, example in enumerate(examples) if example.precision in precisions]
    own = [examples[i] for i in learned]
    z = ((x - mean) / scale)[learned]
    found = LogisticRegression(C=penalty, solver="newton-cholesky", tol=1e-10, max_iter=1000)
    with config_context(assume_finite=True, skip_parameter_validation=True):  # checks take a quarter of the time of a thousand small fits
        found.fit(z, [example.precision for example in own], sample_weight=_weights(own))
    coefficients, intercepts = found.coef_, found.intercept_
    if len(found.classes_) == 2:  # one row, the log odds of the second class: half for each class
        coefficients, intercepts = (np.concatenate([-each, each]) / 2 for each in (coefficients, intercepts))
    names = [str(name) for name in found.classes_]
    return Classifier(
        features=tuple(
            Feature(
                name=name,
                mean=float(mean[i]),
                scale=float(scale[i]),
                weights={precision: float(coefficients[row, i]) for row, precision in enumerate(names)},
            )
            for i, name in enumerate(features)
        ),
        intercepts={precision: float(intercepts[row]) for row, precision in enumerate(names)},
        rates=shares(examples),
        reach=None,
        examples=examples,
    )


def shares(examples: Sequence[Example]) -> dict[str, float]:
    """Compute the share of the families in each of `CLASSES`, with one family added to each."""
    counted = dict.fromkeys(CLASSES, 1.0)
    for example, weight in zip(examples, _weights(examples), strict=True):
        counted[example.precision] += float(weight)
    total = sum(counted.values())
    return {name: count / total for name, count in counted.items()}


def choose(examples: Sequence[Example], tried: Sequence[Candidate]) -> Candidate:
    """Return the candidate with the least log-loss on families left out, as a mean over families."""
    losses = [log_loss([found.probabilities for found in judged(examples, each)], examples).families for each in tried]
    return tried[losses.index(min(losses))]


def judged(examples: Sequence[Example], candidate: Candidate) -> list[Estimate]:
    """Predict each example by a fit without its family."""
    by_family = {family: fit(rest, candidate) for family, rest in folds(examples)}
    return [by_family[example.family].estimate(example.model_dump()) for example in examples]


def out_of_fold(examples: Sequence[Example], tried: Sequence[Candidate]) -> list[OutOfFold]:
    """Predict each example by a fit without its family, which is not used to choose the penalty either: nested leave-one-family-out."""
    fitted = {}
    for family, rest in folds(examples):
        chosen = choose(rest, tried)
        fitted[family] = chosen, fit(rest, chosen), shares(rest), best_thresholds(rest)[0]
    rows = []
    for example in examples:
        chosen, classifier, prior, thresholds = fitted[example.family]
        found = classifier.estimate(example.model_dump())
        rows.append(
            OutOfFold(
                **example.model_dump(),
                probabilities=found.probabilities,
                reason=found.reason,
                features=chosen.recipe.features,
                penalty=chosen.penalty,
                prior=prior,
                rule=rule(example.abs_max, example.norm_max, thresholds),
            )
        )
    return rows


def folds(examples: Sequence[Example]) -> Iterable[tuple[str, tuple[Example, ...]]]:
    """Yield each family with the examples of all others."""
    for family in sorted({example.family for example in examples}):
        yield family, tuple(example for example in examples if example.family != family)


def check(examples: Sequence[Example]) -> None:
    """Raise InvalidRequest unless two families can be left out: one to judge, one to choose with."""
    for precision in LEARNED:
        families = {example.family for example in examples if example.precision == precision}
        if len(families) < 3:
            raise InvalidRequest(
                f"Only {len(families)} families of models with extremes are labelled {precision}, and 3 are needed: add labels of others."
            )
    if len({example.family for example in examples if example.precision in LEARNED}) < 4:
        raise InvalidRequest("Labelled models with extremes are of fewer than 4 families: add labels of others.")


def _weights(examples: Sequence[Example]) -> FloatArray:
    sizes = Counter(example.family for example in examples)
    return np.array([1 / sizes[example.family] for example in examples])


def evaluate(rows: Sequence[OutOfFold], rule_in_sample: int) -> Evaluation:
    """Compute those fields of an `Evaluation` that follow from the predictions. ``rows`` must not be empty."""
    classes = list(rows[0].probabilities)
    return Evaluation(
        models=len(rows),
        families=len({row.family for row in rows}),
        likeliest_correct=sum(max(row.probabilities, key=row.probabilities.__getitem__) == row.precision for row in rows),
        rule_correct=sum(row.rule == row.precision for row in rows),
        rule_in_sample=rule_in_sample,
        log_loss=log_loss([row.probabilities for row in rows], rows),
        prior_log_loss=log_loss([row.prior for row in rows], rows),
        even_log_loss=log(len(classes)),
        out_of_fold=tuple(rows),
    )


def log_loss(probabilities: Sequence[Mapping[str, float]], truth: Sequence[Example]) -> Loss:
    """Compute the log-loss of one set of probabilities per model of ``truth``; that of the true precision must be positive."""
    by_family: dict[str, list[float]] = {}
    for found, row in zip(probabilities, truth, strict=True):
        by_family.setdefault(row.family, []).append(-log(found[row.precision]))
    families = [sum(losses) / len(losses) for losses in by_family.values()]
    return Loss(models=sum(sum(losses) for losses in by_family.values()) / len(truth), families=sum(families) / len(families))


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


def examples(file: Path = LABELS) -> tuple[Example, ...]:
    """Collect the models with extremes and a label that is one of `CLASSES`, by lower-case id.

    file: CSV with the columns model_id and training_precision, which take precedence over the labels of weight_extremes.csv; optional
    columns abs_min, abs_max, norm_min and norm_max add models which that table lacks. Labels of models without extremes are left out.
    Raises InvalidRequest if the file cannot be used.
    """
    known = {each.model.lower(): each for each in labelled_extremes()}
    given: dict[str, str | None] = {}
    for line, row in enumerate(_read_labels(file), 2):
        model, precision = row["model_id"].strip(), precision_of(row["training_precision"].strip())
        key = model.lower()
        if key in given and given[key] != precision:
            raise InvalidRequest(f"Line {line} of {file.name} contradicts an earlier label of {model[:100]!r}: keep one of the two.")
        given[key] = precision
        if key not in known and all(row.get(name) for name in MAGNITUDES):
            try:
                known[key] = Example(model=model, family=family_of(key), precision="", **magnitudes(row))
            except ValueError:
                raise InvalidRequest(f"Line {line} of {file.name} gives no finite magnitudes: write numbers.") from None
    labelled = (each.model_copy(update={"precision": given.get(key, each.precision)}) for key, each in sorted(known.items()))
    return tuple(each for each in labelled if each.precision in CLASSES)


def _read_labels(file: Path) -> list[dict[str, str]]:
    try:
        with file.open(newline="", encoding="utf-8-sig") as opened:
            return [row for row in csv.DictReader(opened, restval="", restkey="more") if row["model_id"].strip()]
    except (OSError, UnicodeDecodeError, csv.Error, KeyError) as error:
        raise InvalidRequest(f"{file.name} cannot be read as CSV with the columns of labels: {error!r}.") from None


def relatives() -> Relatives:
    """Count the labelled models that a relative answers for, each left out in turn, and the right answers among them."""
    right = []
    for each in labelled_extremes():
        row = families()[each.model.lower()]
        found = similar_model(row["model_type"], (row["tensor"],), each.model_dump(), leave_out=each.model)
        right += [] if found is None else [found.precision == each.precision]
    return Relatives(answered=len(right), right=sum(right))


@cache
def evaluated() -> Fit:
    """Read the file that ships: the classifier with its evaluation."""
    return Fit.model_validate_json(FITTED.read_bytes())


def fit_all(labels: Path = LABELS) -> Fit:
    """Fit the classifier on every labelled model, and evaluate it. Raises MantissaError if the labels cannot be used."""
    known = examples(labels)
    check(known)
    tried = candidates()
    chosen = choose(known, tried)
    return Fit(
        command=COMMAND if labels == LABELS else f"{COMMAND} --labels {labels.name}",
        versions={"python": platform.python_version(), "numpy": np.__version__, "scikit-learn": sklearn.__version__},
        penalty=chosen.penalty,
        penalties=PENALTIES,
        classifier=fit(known, chosen),
        relatives=relatives(),
        evaluation=evaluate(out_of_fold(known, tried), rule_correct(known)),
    )


def main(arguments: list[str] | None = None) -> int:
    """Fit the classifier, write it, and print its accuracy; returns the exit status."""
    parser = argparse.ArgumentParser(prog=COMMAND, description="Fit the classifier of the training precision.")
    parser.add_argument("--labels", type=Path, default=LABELS, metavar="FILE", help="CSV with the columns model_id, training_precision")
    parser.add_argument("--out", type=Path, default=FITTED, metavar="FILE", help="the JSON to write (default: the one the app reads)")
    options = parser.parse_args(arguments)
    try:
        found = fit_all(options.labels)
        with replacing(options.out) as file:
            file.write_text(json.dumps(found.model_dump(mode="json"), indent=1) + "\n", encoding="utf-8")
    except MantissaError as error:
        print_line(str(error))
        return 2
    except OSError as error:
        print_line(f"{options.out.name} cannot be written: {error.strerror}.")
        return 2
    result = found.evaluation
    print_line(
        f"{result.models} models of {result.families} families, each family left out in turn: "
        f"likeliest right for {result.likeliest_correct} (the rule: {result.rule_correct}); "
        f"log-loss {result.log_loss.models:.3f} "
        f"(shares of the families: {result.prior_log_loss.models:.3f}, even: {result.even_log_loss:.3f})",
        sys.stdout,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
