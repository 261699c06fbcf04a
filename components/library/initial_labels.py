"""Provides the initial labels: those of the built-in classifier, each with its source."""

import csv

from analyzers.dtype_detection.labelled_models import LABELS
from components.library.schema import Identity, Label

SEED = Identity(name="seed:mantissa", provenance="seed")
# Time of the last change of the labels: labels of an older program are replaced.
GATHERED = "2026-11-24T00:00:00.000000Z"


def seed_labels() -> list[Label]:
    """Return one label per row of training_precision_labels.csv; the same ids on every machine."""
    with LABELS.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [Label.of(SEED, row["model_id"], row["training_precision"], row["link"], row["evidence"], created=GATHERED) for row in rows]
