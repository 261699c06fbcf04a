"""Measured accuracy of quick mode: how often its intervals hold the exact value, and the bias of its estimates. Kept in a file."""

import csv
from functools import cache
from pathlib import Path

from analyzers.records import Record

ACCURACY = Path(__file__).parent / "reference" / "accuracy.csv"


class Accuracy(Record):
    """Accuracy of the estimates of one kind, over ``seeds`` samples of an update of one structure.

    estimates: their number; given: share of them, over all samples, that have an interval; held: share of these intervals that hold the
    exact value; least: the lowest such share of a single estimate, among those with an interval in at least half of the samples; bias: the
    mean relative error of the estimate for which it is largest. held, least and bias are null if undefined.
    """

    structure: str
    kind: str
    seeds: int
    estimates: int
    given: float
    held: float | None
    least: float | None
    bias: float | None


@cache
def accuracies() -> tuple[Accuracy, ...]:
    """Read the rows of accuracy.csv."""
    with ACCURACY.open(newline="", encoding="utf-8") as file:
        rows = [{name: value or None for name, value in row.items()} for row in csv.DictReader(file)]
    return tuple(Accuracy.model_validate(row, strict=False) for row in rows)
