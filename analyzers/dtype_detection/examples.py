"""The models that the classifier is fitted on: extremes of their weights, with a label each."""

import csv
from math import isfinite
from pathlib import Path

from analyzers import limits
from analyzers.dtype_detection.evaluation import Example
from analyzers.dtype_detection.labels import MAGNITUDES, REFERENCE, family_of, labelled_extremes, precision_of
from analyzers.errors import InvalidRequest, LimitExceeded

LABELS = REFERENCE / "training_precision_labels.csv"
# What the classifier knows; fp8 is seen in the bits or in a label.
CLASSES = ("fp16", "bf16", "fp32")


def examples(file: Path = LABELS) -> tuple[Example, ...]:
    """Models with extremes and a label that is one of `CLASSES`, by lower-case id.

    file: CSV with the columns model_id and training_precision, which go before the labels of weight_extremes.csv; columns
    abs_min, abs_max, norm_min and norm_max, where there are any, add models which that table lacks. Labels of models
    without extremes are left out. Raises InvalidRequest if the file cannot be used, LimitExceeded if it is too large.
    """
    extremes = {each.model.lower(): [getattr(each, name) for name in MAGNITUDES] for each in labelled_extremes()}
    names = {each.model.lower(): each.model for each in labelled_extremes()}
    precisions: dict[str, str | None] = {each.model.lower(): each.precision for each in labelled_extremes()}
    given: dict[str, str | None] = {}
    for line, row in enumerate(_rows(file), 2):
        model, precision = row["model_id"].strip(), precision_of(row["training_precision"].strip())
        key = model.lower()
        if key in given and given[key] != precision:
            raise InvalidRequest(f"Line {line} of {file.name} contradicts an earlier label of {model[:100]!r}: keep one of the two.")
        given[key] = precision
        names.setdefault(key, model)
        if key not in extremes and all(row.get(name) for name in MAGNITUDES):
            extremes[key] = [_magnitude(row[name], line, file) for name in MAGNITUDES]
    precisions |= given
    chosen = ((key, precisions[key]) for key in sorted(extremes))
    return tuple(
        Example(model=names[key], family=family_of(key), precision=precision, **dict(zip(MAGNITUDES, extremes[key], strict=True)))
        for key, precision in chosen
        if precision in CLASSES
    )


def _rows(file: Path) -> list[dict[str, str]]:
    try:
        size = file.stat().st_size
        if size > limits.LABELS_BYTES:
            raise LimitExceeded(
                f"{file.name} has {size:,} bytes; the limit is {limits.LABELS_BYTES:,} (MANTISSA_LABELS_BYTES). "
                "Leave out models without extremes."
            )
        with file.open(newline="", encoding="utf-8-sig") as opened:
            reader = csv.DictReader(opened, restval="", restkey="more")
            if not {"model_id", "training_precision"} <= set(reader.fieldnames or ()):
                raise InvalidRequest(f"{file.name} must have the columns model_id and training_precision in its first line.")
            return [row for row in reader if row["model_id"].strip()]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no CSV in UTF-8"
        raise InvalidRequest(f"{file.name} cannot be read as labels: {reason}.") from None


def _magnitude(text: str, line: int, file: Path) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not (isfinite(value) and value >= 0):
        raise InvalidRequest(f"Line {line} of {file.name} gives {text[:40]!r} as a magnitude: write a finite number that is not negative.")
    return value
