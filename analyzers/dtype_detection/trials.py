"""Models that nothing was fitted on: small, untrained, or for other tasks than language; and the claims a threshold would make of all.

Only extremes of their weights are kept, in reference/trials.csv, with their origin and the evidence for their training precision.
"""

from functools import cache

from analyzers.dtype_detection.classifier import fitted
from analyzers.dtype_detection.labelled_models import Example, labelled_extremes, magnitudes, precision_of, rows_of
from analyzers.records import Record


class Trial(Example):
    """A model that a package ships (``file`` of it), or an untrained one that transformers initialized (``model_type``).

    precision: "fp16", "bf16", "fp32", or "untrained". tensors: number of its parameters' tensors. evidence: for the precision.
    """

    model_type: str
    file: str
    tensors: int
    evidence: str

    @property
    def likeliest(self) -> tuple[str, float]:
        """Precision that magnitudes make likeliest, and its probability; 0 if no labelled model is near."""
        found = fitted().classifier.estimate(self.model_dump())
        name = max(found.probabilities, key=lambda each: found.probabilities[each])
        return name, 0.0 if found.reason == "unsupported" else found.probabilities[name]


class Claims(Record):
    """Claims about ``models``: the number answered, and the right answers among them."""

    models: int
    answered: int
    right: int


@cache
def trials() -> tuple[Trial, ...]:
    """Read the rows of trials.csv."""
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
    """Count the claims of a rule that takes the format of a copy for the training precision.

    Every labelled model and every trial is saved in ``precision`` and claimed to have been trained in it.
    """
    truth = [row.precision for row in (*labelled_extremes(), *trials())]
    return Claims(models=len(truth), answered=len(truth), right=truth.count(precision))


def claims(threshold: float) -> Claims:
    """Count the claims of the likeliest precision from a probability of ``threshold`` on.

    Labelled models are predicted without their family; all trials are predicted by the classifier that ships.
    """
    guesses = [
        (row.precision, name, 0.0 if row.reason == "unsupported" else row.probabilities[name])
        for row in fitted().evaluation.out_of_fold
        for name in [max(row.probabilities, key=lambda each: row.probabilities[each])]
    ]
    guesses += [(trial.precision, *trial.likeliest) for trial in trials()]
    right = [precision == name for precision, name, probability in guesses if probability >= threshold]
    return Claims(models=len(guesses), answered=len(right), right=sum(right))
