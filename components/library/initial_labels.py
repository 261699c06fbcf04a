"""Provides the initial labels: those of the built-in classifier and of the published table of weights, each with its source."""

import csv

from analyzers.dtype.labelled_models import LABELS, labelled_extremes
from components.library.items import SEED, Identity, Label

# Time of the last change of the labels.
_GATHERED = "2026-11-27T00:00:00.000000Z"
_TABLE = "https://github.com/stas00/ml-ways/blob/master/numbers/detect-model-pretrained-in-bf16-fp16-fp32.ipynb"
_SAYS = "stas00/ml-ways, table of weights by known training precision"


def initial_labels() -> list[Label]:
    """Return a label per model of training_precision_labels.csv or weight_extremes.csv; the same ids on every machine."""
    with LABELS.open(newline="", encoding="utf-8") as file:
        rows = [(row["model_id"], row["training_precision"], row["link"], row["evidence"]) for row in csv.DictReader(file)]
    known = {model.lower() for model, *_ in rows}
    rows += [(each.model, each.precision, _TABLE, _SAYS) for each in labelled_extremes() if each.model.lower() not in known]
    return [Label.of(Identity(name=SEED), *row, created=_GATHERED) for row in rows]
