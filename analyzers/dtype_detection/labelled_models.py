"""Models of known training precision: labels with their evidence, extremes of their weights, and their families."""

import csv
from dataclasses import dataclass
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Literal

from analyzers.core.errors import InvalidRequest, LimitExceeded
from analyzers.core.records import Record

LABELS_BYTES = 10_000_000  # A file of labels that the classifier is fitted on is parsed in memory.
REFERENCE = Path(__file__).parent / "reference"
LABELS = REFERENCE / "training_precision_labels.csv"

# Training precisions that are told apart; a label may add how, as in "fp16-mixed".
PRECISIONS = ("fp16", "bf16", "fp32", "fp8")
# Precisions that the classifier knows; fp8 is seen in the bits or in a label.
CLASSES = ("fp16", "bf16", "fp32")

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


def examples(file: Path = LABELS) -> tuple[Example, ...]:
    """Collect the models with extremes and a label that is one of `CLASSES`, by lower-case id.

    file: CSV with the columns model_id and training_precision, which take precedence over the labels of weight_extremes.csv; optional
    columns abs_min, abs_max, norm_min and norm_max add models which that table lacks. Labels of models without extremes are left out.
    Raises InvalidRequest if the file cannot be used, LimitExceeded if it is too large.
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
            for name in MAGNITUDES:
                _check_magnitude(row[name], line, file)
            known[key] = Example(model=model, family=family_of(key), precision="", **magnitudes(row))
    labelled = (each.model_copy(update={"precision": given.get(key, each.precision)}) for key, each in sorted(known.items()))
    return tuple(each for each in labelled if each.precision in CLASSES)


def _read_labels(file: Path) -> list[dict[str, str]]:
    try:
        size = file.stat().st_size
        if size > LABELS_BYTES:
            raise LimitExceeded(f"{file.name} has {size:,} bytes; the limit is {LABELS_BYTES:,}. Leave out models without extremes.")
        with file.open(newline="", encoding="utf-8-sig") as opened:
            reader = csv.DictReader(opened, restval="", restkey="more")
            if not {"model_id", "training_precision"} <= set(reader.fieldnames or ()):
                raise InvalidRequest(f"{file.name} must have the columns model_id and training_precision in its first line.")
            return [row for row in reader if row["model_id"].strip()]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not CSV in UTF-8"
        raise InvalidRequest(f"{file.name} cannot be read as labels: {reason}.") from None


def _check_magnitude(text: str, line: int, file: Path) -> None:
    try:
        if float(text) >= 0 and isfinite(float(text)):
            return
    except ValueError:
        pass
    raise InvalidRequest(f"Line {line} of {file.name} gives {text[:40]!r} as a magnitude: write a finite number that is not negative.")
