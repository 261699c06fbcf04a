"""Models of known training precision: labels with their evidence, extremes of their weights, and their families."""

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from analyzers.core.records import Record

REFERENCE = Path(__file__).parent / "reference"
LABELS = REFERENCE / "training_precision_labels.csv"

# Training precisions that are told apart; a label may add how, as in "fp16-mixed".
PRECISIONS = ("fp16", "bf16", "fp32", "fp8")

# Both the largest weight and the largest norm are within this factor of the relative's. Models of one recipe mostly are (`Relatives`);
# untrained models of its architecture are not.
NEAR = 1.5

Magnitude = Literal["abs_min", "abs_max", "norm_min", "norm_max"]
MAGNITUDES: tuple[Magnitude, ...] = ("abs_min", "abs_max", "norm_min", "norm_max")


@dataclass(frozen=True, slots=True)
class Label:
    """A known training precision ("fp16-mixed", "bf16", ...) and its source."""

    precision: str
    evidence: str


class Example(Record):
    """A labelled model: its family, its training precision, and the extremes of its base model's weights.

    abs_min, abs_max: over all values, zeros included; norm_min, norm_max: over the Frobenius norms of its parameters, without zero norms.
    """

    model: str
    family: str
    precision: str
    abs_min: float
    abs_max: float
    norm_min: float
    norm_max: float


def precision_of(label: str) -> str | None:
    """Return the one of `PRECISIONS` that a label names: "fp16" for "fp16-mixed", None for any other ("mxfp4-post-trained")."""
    name = label.split("-")[0]
    return name if name in PRECISIONS else None


@cache
def labels() -> dict[str, Label]:
    """Read known training precisions by lower-case model id (training_precision_labels.csv; sources in each row)."""
    return {row["model_id"].lower(): Label(row["training_precision"], row["evidence"]) for row in rows_of(LABELS.name)}


@cache
def labelled_extremes() -> tuple[Example, ...]:
    """Read the 29 labelled models of the reference table (stas00/ml-ways)."""
    return tuple(
        Example(model=row["model_id"], family=family_of(row["model_id"]), precision=row["training_precision"], **magnitudes(row))
        for row in rows_of("weight_extremes.csv")
    )


def family_of(model: str) -> str:
    """Return the family of a model: models of one recipe, of one group's code, or trained from one another (families.csv, with reasons).

    Members of a family are not independent evidence of what a precision does to weights, so they are left out together. A model that is not
    listed belongs to the family of its organisation, which can only be too wide.
    """
    row = families().get(model.lower())
    return row["family"] if row else model.lower().split("/")[0]


@cache
def families() -> dict[str, dict[str, str]]:
    """Read families.csv by lower-case model id: family, reason, model_type of config.json, and the end of a tensor's name."""
    return {row["model_id"].lower(): row for row in rows_of("families.csv")}


def rows_of(name: str) -> list[dict[str, str]]:
    """Read the rows of a CSV in `REFERENCE`."""
    with (REFERENCE / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def magnitudes(row: dict[str, str]) -> dict[Magnitude, float]:
    """Convert the four magnitudes of a row."""
    return {name: float(row[name]) for name in MAGNITUDES}


def similar_model(model_type: object, names: Iterable[str], magnitudes: Mapping[str, float], leave_out: str = "") -> Example | None:
    """Return the labelled model that tells the training precision of another, None if there is none.

    At least two labelled models must have the architecture (model_type of config.json, and a tensor of theirs among ``names``), all of them
    with the same precision, and one must have abs_max and norm_max within a factor of `NEAR`. leave_out: a model that is not returned.
    """
    own = {row["tensor"] for row in families().values() if row["model_type"] == model_type}
    if not any(name == tensor or name.endswith(f".{tensor}") for name in names for tensor in own):
        return None
    alike = [each for each in labelled_extremes() if families()[each.model.lower()]["model_type"] == model_type]
    if len(alike) < 2 or len({each.precision for each in alike}) > 1:
        return None
    return next((each for each in alike if each.model != leave_out and _near(each, magnitudes)), None)


def _near(known: Example, magnitudes: Mapping[str, float]) -> bool:
    pairs = ((known.abs_max, magnitudes["abs_max"]), (known.norm_max, magnitudes["norm_max"]))
    return all(mine / NEAR <= other <= mine * NEAR for mine, other in pairs)
