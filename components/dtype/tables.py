"""Renders the evidence below the tiles: bit-pattern tests, magnitudes, representable shares, notes; and the table of several models."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from analyzers.columns import Column
from analyzers.dtype_detection import DtypeReport
from analyzers.dtype_detection.advice import ignored, untouched
from analyzers.dtype_detection.columns import EVIDENCE, EXTREMES, GRIDS, QUANTIZATION_ROLES
from analyzers.dtype_detection.report import VERDICT_WORDS
from analyzers.records import Interval
from analyzers.tensor_words import format_name
from components.dtype.comparison_plots import FIGURES
from components.dtype.form import permalink
from components.dtype.text import lineage_answer, risk, stored_answer, training_answer
from components.forms.form import as_read
from components.results import self_contained_page
from components.results.tables import listed
from components.text import caption, notes, numbers, render, shown, table

_BUFFERS_SHOWN = 20


def evidence(report: DtypeReport) -> str:
    """Render every bit-pattern test with its result, then magnitudes, then notes."""
    pair = f'<div class="m-pair"><div>{_magnitudes(report)}</div><div>{representable(report)}</div></div>'
    return f'<div class="m-card">{_questions(report)}{_parts(report)}{pair}{_notes(report)}</div>'


def still(report: DtypeReport) -> str:
    """Render sentences on weights that may never have been trained."""
    sentences = untouched(report)
    return f'<div class="m-card">{notes(sentences)}</div>' if sentences else ""


def grids(report: DtypeReport) -> str:
    """Render the grids of the weights, and the roles of the matrices on none."""
    off = [f"Matrices on none of the proven grids are in {', '.join(report.off_grid)}."] if report.off_grid else []
    return f'<div class="m-card">{listed(GRIDS, report)}{notes(off)}</div>'


def headroom(report: DtypeReport) -> str:
    """Render the errors of each format by role, and the modules to leave unquantized."""
    return f'<div class="m-card">{listed(QUANTIZATION_ROLES, report)}{notes(ignored(report))}</div>'


def _questions(report: DtypeReport) -> str:
    return listed(EVIDENCE, report) or '<p class="m-say">There is nothing to test: the selection has no plain floats.</p>'


def _parts(report: DtypeReport) -> str:
    lineage = report.lineage
    text = ""
    if lineage.fossil_rows:
        rows = numbers.plural(lineage.fossil_rows, "row")
        of = "" if report.extremes.exact else " of those read"
        text = (
            f'<p class="m-say">{rows}{of} hold only values of a narrower format, in tensors that do not: most likely never updated '
            "since.</p>"
        )
    if len(lineage.parts) < 2:
        return text
    rows_by_verdict: list[tuple[str, str, str]] = [
        (VERDICT_WORDS[part.verdict], numbers.count(part.tensors), numbers.count(part.parameters)) for part in lineage.parts
    ]
    if (unread := report.selected_tensors - sum(part.tensors for part in lineage.parts)) > 0:
        rows_by_verdict.append(("not read", numbers.count(unread), numbers.NOTHING))
    return table(("Lineage", "Tensors", "Parameters"), rows_by_verdict, frozenset({1, 2}), "Tensors by their own lineage") + text


def _magnitudes(report: DtypeReport) -> str:
    extremes, counts = report.extremes, report.counts
    rows = [
        ("Smallest magnitude, zeros included", numbers.magnitude(extremes.abs_min)),
        ("Smallest nonzero magnitude", numbers.magnitude(extremes.abs_min_nonzero)),
        ("Largest magnitude", numbers.magnitude(extremes.abs_max)),
        ("Smallest tensor norm", numbers.magnitude(extremes.norm_min)),
        ("Largest tensor norm", numbers.magnitude(extremes.norm_max)),
        ("Zeros", numbers.count(counts.zero)),
        ("NaN", numbers.count(counts.nan)),
        ("Infinite", numbers.count(counts.inf)),
        ("Infinite in fp16", numbers.count(counts.fp16_overflow)),
        ("Zero in fp16", numbers.count(counts.fp16_underflow)),
        ("Subnormal in fp16", numbers.count(counts.fp16_subnormal)),
    ]
    seen = "" if extremes.exact else ", a sample"
    return table((f"Of the {numbers.plural(report.values_read, 'value')} read{seen}", ""), rows, frozenset({1}))


def _notes(report: DtypeReport) -> str:
    said = list(report.notes)
    if report.buffers:
        names = ", ".join(shown(buffer.name, 80) for buffer in report.buffers[:_BUFFERS_SHOWN])
        more = f" and {len(report.buffers) - _BUFFERS_SHOWN:,} more" if len(report.buffers) > _BUFFERS_SHOWN else ""
        said.append(f"Left out as buffers, which no training changes: {names}{more}.")
    return notes(said)


_OTHERS = {"zero": "zero", "fp16_underflow": "nonzero, but zero in fp16", "fp16_subnormal": "subnormal in fp16"}
_PREFIX = "representable."
# Of the comparison, after the number and the name of the model.
_COMPARED = (
    Column("stored", "Stored", cell=stored_answer),
    Column("passed_through", "Passed through", cell=lambda report: lineage_answer(report)[0]),
    Column("trained_in", "Trained in", cell=training_answer),
    Column("fp16", "In fp16", cell=lambda report: risk(report)[0]),
    *(column for column in EXTREMES if column.title),
    Column("parameters", "Parameters", numbers.parameters, "checkpoint.parameters"),
)


def representable(report: DtypeReport) -> str:
    """Render a row per format with the fraction of finite nonzero values that it represents exactly; for a sample, also other estimates."""
    known = {_PREFIX + key: share for key, share in report.representable.model_dump().items()}
    formats = []
    for key, share in known.items():
        interval = report.intervals.get(key)
        name = key.removeprefix(_PREFIX)
        formats.append(_row(format_name(name), interval.estimate if interval else share, interval))
    others = [_row(_OTHERS.get(key, key), interval.estimate, interval) for key, interval in report.intervals.items() if key not in known]
    return render("dtype/templates/representable.html", formats=formats, others=others, sampled=bool(report.intervals))


def _row(name: str, share: float | None, interval: Interval | None) -> dict[str, Any]:
    bounds = None if interval is None else (numbers.share(interval.low), numbers.share(interval.high))
    return {"name": name, "value": share, "share": numbers.share(share), "bounds": bounds}


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
    for index, model in enumerate(asked):
        outcome = outcomes[index] if index < len(outcomes) else None
        if outcome is not None and outcome.report is not None:
            report = outcome.report
            address = f"#report-{index + 1}" if anchors else permalink(as_read(report))
            cells = [column.text_of(report) for column in _COMPARED]
            rows.append({"name": report.checkpoint.ref, "address": address, "cells": cells, "reach": report.short_reach()})
        else:
            rows.append({"name": model, "cells": (), "error": outcome.error if outcome else "", "rest": rest})
    sampled = any(not report.extremes.exact for _, report in numbered(outcomes))
    return render("dtype/templates/comparison.html", columns=_COMPARED, rows=rows, sampled=sampled)


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
