"""Models of known training precision: labels with their evidence, extremes of their weights, and their families."""

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

REFERENCE = Path(__file__).parent / "reference"

# What training is told apart into; a label may add how, as in "fp16-mixed".
PRECISIONS = ("fp16", "bf16", "fp32", "fp8")
MAGNITUDES = ("abs_min", "abs_max", "norm_min", "norm_max")


@dataclass(frozen=True, slots=True)
class Label:
    """A known training precision ("fp16-mixed", "bf16", ...) and where that is said."""

    precision: str
    evidence: str


@dataclass(frozen=True, slots=True)
class LabelledExtremes:
    """A model of known training precision with the extremes of its weights (rows of weight_extremes.csv).

    abs_min, abs_max: over all values of the base model, zeros included; norm_min, norm_max: over the Frobenius norms
    of its parameters, zero norms left out.
    """

    model: str
    precision: str
    abs_min: float
    abs_max: float
    norm_min: float
    norm_max: float


def precision_of(label: str) -> str | None:
    """The one of `PRECISIONS` that a label is about: "fp16" of "fp16-mixed"; None of any other ("mxfp4-post-trained")."""
    name = label.split("-")[0]
    return name if name in PRECISIONS else None


@cache
def labels() -> dict[str, Label]:
    """Known training precisions by lower-case model id (training_precision_labels.csv; sources in each row)."""
    return {row["model_id"].lower(): Label(row["training_precision"], row["evidence"]) for row in _rows("training_precision_labels.csv")}


@cache
def labelled_extremes() -> tuple[LabelledExtremes, ...]:
    """The 29 labelled models of the reference table (stas00/ml-ways)."""
    return tuple(
        LabelledExtremes(row["model_id"], row["training_precision"], *(float(row[name]) for name in MAGNITUDES))
        for row in _rows("weight_extremes.csv")
    )


def family_of(model: str) -> str:
    """The family of a model: models of one recipe, of one group's code, or trained on from one another (families.csv, with reasons).

    Its members are no independent witnesses of what a precision does to weights, so they are left out together. A model
    that is not listed is of the family of its organisation, which can only be too wide.
    """
    return _families().get(model.lower(), model.lower().split("/")[0])


@cache
def _families() -> dict[str, str]:
    return {row["model_id"].lower(): row["family"] for row in _rows("families.csv")}


def _rows(name: str) -> list[dict[str, str]]:
    with (REFERENCE / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
