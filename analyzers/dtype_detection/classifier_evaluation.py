"""The evaluation of the classifier on families never seen, from predictions *out of fold*: each family by a fit without it."""

from analyzers.core.records import Record
from analyzers.dtype_detection.labelled_models import Example


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
