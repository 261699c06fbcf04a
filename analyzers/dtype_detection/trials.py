"""Models that nothing was fitted on, small, of other subjects than language, or untrained; and what a threshold would claim of all models.

Only extremes of their weights are kept, in reference/trials.csv, with where they come from and how their training precision is known.
"""

from functools import cache

from analyzers.data import Data
from analyzers.dtype_detection.classifier import fitted
from analyzers.dtype_detection.labels import Example, labelled_extremes, magnitudes, precision_of, rows_of


class Trial(Example):
    """A model that a package ships (``file`` of it), or one that transformers initialized (``model_type``) and nobody trained.

    precision: "fp16", "bf16", "fp32", or "untrained". tensors: number of its parameters' tensors. evidence: of the precision.
    """

    model_type: str
    file: str
    tensors: int
    evidence: str

    @property
    def likeliest(self) -> tuple[str, float]:
        """The precision that magnitudes make likeliest, and its probability; 0 if no labelled model is near."""
        found = fitted().classifier.estimate(self.model_dump())
        name = max(found.probabilities, key=lambda each: found.probabilities[each])
        return name, 0.0 if found.reason == "unsupported" else found.probabilities[name]


class Claims(Data):
    """What is claimed of ``models``: the answered ones, and the right answers among them."""

    models: int
    answered: int
    right: int


@cache
def trials() -> tuple[Trial, ...]:
    """The rows of trials.csv."""
    return tuple(
        Trial(
            model=row["model"],
            family=row["family"],
            precision=precision_of(row["training_precision"]) or row["training_precision"],
            model_type=row["model_type"],
            file=row["file"],
            tensors=int(row["tensors"]),
            evidence=row["evidence"],
            **magnitudes(row),
        )
        for row in rows_of("trials.csv")
    )


def copies(precision: str) -> Claims:
    """Claim the format of a copy: save every labelled model and every trial in ``precision``, and say that it was trained in that."""
    truth = [row.precision for row in (*labelled_extremes(), *trials())]
    return Claims(models=len(truth), answered=len(truth), right=truth.count(precision))


def claims(threshold: float) -> Claims:
    """Claim the likeliest precision from a probability of ``threshold`` on: of labelled models without their family, and of all trials."""
    guesses = [
        (row.precision, name, 0.0 if row.reason == "unsupported" else row.probabilities[name])
        for row in fitted().evaluation.out_of_fold
        for name in [max(row.probabilities, key=lambda each: row.probabilities[each])]
    ]
    guesses += [(trial.precision, *trial.likeliest) for trial in trials()]
    right = [precision == name for precision, name, probability in guesses if probability >= threshold]
    return Claims(models=len(guesses), answered=len(right), right=sum(right))
