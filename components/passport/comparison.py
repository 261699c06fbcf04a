"""Several models in one table, one row each: storage dtype, proven and inferred facts, and weight magnitudes."""

from collections.abc import Sequence
from typing import Any

from analyzers.dtype_detection import DtypeReport
from components.passport.form import permalink
from components.passport.outcomes import Outcome, reports_of
from components.passport.tiles import answers
from components.text import numbers
from components.text.render import render

_HEAD = ("", "Model", "Stored", "Passed through", "Trained in", "In fp16", "abs min", "abs max", "norm min", "norm max", "Parameters")
# The first numeric column.
_NUMERIC = 6


def comparison(asked: Sequence[str], outcomes: Sequence[Outcome], rest: str = "waiting", anchors: bool = False) -> str:
    """A table of the models in ``asked``. The first rows have ``outcomes``; the others show ``rest``.

    A model's name links to its report: to its permalink, or with ``anchors`` to ``#report-1``, ``#report-2``... on the same page, by row.
    """
    rows: list[dict[str, Any]] = []
    for index, model in enumerate(asked):
        outcome = outcomes[index] if index < len(outcomes) else None
        if outcome is not None and outcome.report is not None:
            rows.append(_row(outcome.report, f"#report-{index + 1}" if anchors else permalink(outcome.report)))
        else:
            rows.append({"name": model, "cells": (), "error": outcome.error if outcome else "", "rest": rest})
    sampled = any(not report.extremes.exact for report in reports_of(outcomes))
    return render("passport/templates/comparison.html", titles=_HEAD, numeric=_NUMERIC, rows=rows, sampled=sampled)


def _row(report: DtypeReport, address: str) -> dict[str, Any]:
    """address: the target of the link on the model's name."""
    extremes = report.extremes
    magnitudes = (extremes.abs_min, extremes.abs_max, extremes.norm_min, extremes.norm_max)
    cells = [*answers(report), *map(numbers.magnitude, magnitudes), numbers.parameters(report.checkpoint.parameters)]
    return {"name": report.checkpoint.ref, "address": address, "cells": cells}
