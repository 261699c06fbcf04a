"""Evaluation of the classifier on families never seen: log-loss, counts, reliability, in plain Python.

Every number is computed from predictions *out of fold*: each family is predicted by a fit without it.
"""

from collections.abc import Mapping, Sequence
from math import log

from analyzers.dtype_detection.labelled_models import Example
from analyzers.records import Record

BINS = 5


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


class Bin(Record):
    """Predicted probabilities in [low, high): their number, their mean, and the share of them that came true."""

    low: float
    high: float
    predictions: int
    mean: float
    share: float


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
    reliability: tuple[Bin, ...]
    out_of_fold: tuple[OutOfFold, ...]


class Alternative(Record):
    """Another way to fit, evaluated in the same folds.

    name: what it is; likeliest_correct: number of likeliest precisions that are right.
    """

    name: str
    log_loss: Loss
    likeliest_correct: int


def evaluate(rows: Sequence[OutOfFold], rule_in_sample: int) -> Evaluation:
    """Compute those fields of an `Evaluation` that follow from the predictions. ``rows`` must not be empty."""
    classes = list(rows[0].probabilities)
    return Evaluation(
        models=len(rows),
        families=len({row.family for row in rows}),
        likeliest_correct=likeliest_correct([row.probabilities for row in rows], rows),
        rule_correct=sum(row.rule == row.precision for row in rows),
        rule_in_sample=rule_in_sample,
        log_loss=log_loss([row.probabilities for row in rows], rows),
        prior_log_loss=log_loss([row.prior for row in rows], rows),
        even_log_loss=log(len(classes)),
        reliability=reliability(rows),
        out_of_fold=tuple(rows),
    )


def log_loss(probabilities: Sequence[Mapping[str, float]], truth: Sequence[Example]) -> Loss:
    """Compute the log-loss of one set of probabilities per model of ``truth``; that of the true precision must be positive."""
    by_family: dict[str, list[float]] = {}
    for found, row in zip(probabilities, truth, strict=True):
        by_family.setdefault(row.family, []).append(-log(found[row.precision]))
    families = [sum(losses) / len(losses) for losses in by_family.values()]
    return Loss(models=sum(sum(losses) for losses in by_family.values()) / len(truth), families=sum(families) / len(families))


def likeliest_correct(probabilities: Sequence[Mapping[str, float]], truth: Sequence[Example]) -> int:
    """Count the models whose likeliest precision is the labelled one."""
    return sum(max(found, key=lambda name: found[name]) == row.precision for found, row in zip(probabilities, truth, strict=True))


def reliability(rows: Sequence[OutOfFold]) -> tuple[Bin, ...]:
    """Bin the predicted probabilities of every precision for every model into `BINS` bins of equal width; empty bins are omitted."""
    pairs: list[list[tuple[float, bool]]] = [[] for _ in range(BINS)]
    for row in rows:
        for name, probability in row.probabilities.items():
            pairs[min(int(probability * BINS), BINS - 1)].append((probability, name == row.precision))
    return tuple(
        Bin(
            low=i / BINS,
            high=(i + 1) / BINS,
            predictions=len(inside),
            mean=sum(p for p, _ in inside) / len(inside),
            share=sum(true for _, true in inside) / len(inside),
        )
        for i, inside in enumerate(pairs)
        if inside
    )
