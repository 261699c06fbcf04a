"""Renders the table and the figures of several models."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from analyzers.dtype_detection import DtypeReport
from components.dtype.comparison_plots import FIGURES
from components.dtype.form import permalink
from components.dtype.tiles import tiles
from components.forms.form import as_read
from components.results import self_contained_page
from components.text import caption, render


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome for one of several requested models.

    report: without tensor rows, to limit memory per visitor; None if the model failed, in which case ``error`` is set.
    """

    model: str
    report: DtypeReport | None = None
    error: str = ""


def numbered(outcomes: Sequence[Outcome]) -> list[tuple[int, DtypeReport]]:
    """Return the available reports with their row numbers, which include failed models."""
    return [(row, outcome.report) for row, outcome in enumerate(outcomes, 1) if outcome.report is not None]


def comparison(asked: Sequence[str], outcomes: Sequence[Outcome], rest: str = "waiting", anchors: bool = False) -> str:
    """Render a table of the models in ``asked``. The first rows have ``outcomes``; the others show ``rest``.

    A model's name links to its report: to its permalink, or with ``anchors`` to ``#report-1``, ``#report-2``... on the same page, by row.
    """
    rows: list[dict[str, Any]] = []
    titles: list[str] = []
    for index, model in enumerate(asked):
        outcome = outcomes[index] if index < len(outcomes) else None
        if outcome is not None and outcome.report is not None:
            report = outcome.report
            address = f"#report-{index + 1}" if anchors else permalink(as_read(report))
            answers = tiles(report)
            titles, cells = [tile.label for tile in answers], [tile.value for tile in answers]
            rows.append({"name": report.checkpoint.ref, "address": address, "cells": cells, "reach": report.short_reach()})
        else:
            rows.append({"name": model, "cells": (), "error": outcome.error if outcome else "", "rest": rest})
    return render("dtype/templates/comparison.html", titles=titles or [""], rows=rows)


def overview(reports: Sequence[DtypeReport]) -> str:
    """Render the table and the figures of several models, which precede their passports in a document."""
    return overview_of([Outcome(report.checkpoint.ref, report) for report in reports])


def overview_of(outcomes: Sequence[Outcome]) -> str:
    """Render `overview` with rows for the models that could not be read."""
    read = numbered(outcomes)
    rows = self_contained_page.card(comparison([outcome.model for outcome in outcomes], outcomes, anchors=True))
    drawn = [report for _, report in read], [row for row, _ in read]
    figures = [
        self_contained_page.figure(title, draw(*drawn), f"several-{number}", caption(said))
        for number, (_, title, said, draw) in enumerate(FIGURES if read else ())
    ]
    return f"<article>{rows}{''.join(figures)}</article>"
