"""Passports as one self-contained page."""

from collections.abc import Sequence

from analyzers.dtype_detection import DtypeReport
from components.passport.comparison import comparison
from components.passport.evidence import evidence
from components.passport.outcomes import Outcome
from components.passport.tiles import passport
from components.plots import dtype_detection as plots
from components.plots.among_models import among_models, place
from components.results import standalone
from components.text import numbers
from components.text.markup import table
from components.text.plain_text import html, shown

_AMONG = "Among models of known training precision"


def document(outcomes: Sequence[Outcome]) -> standalone.Page:
    """A page with the passport, tables and plots of each model with a report; for several models, preceded by their comparison table.

    Rows are numbered as in ``outcomes``, including failed ones.
    """
    found = [(row, outcome.report) for row, outcome in enumerate(outcomes, 1) if outcome.report is not None]
    names = [shown(report.checkpoint.ref, 60) for _, report in found]
    overview = [_overview(outcomes, found)] if len(outcomes) > 1 else []
    articles = [_article(report, row, len(outcomes) == 1) for row, report in found]
    return standalone.report_page("Precision passport", names, overview + articles)


def _overview(outcomes: Sequence[Outcome], found: Sequence[tuple[int, DtypeReport]]) -> str:
    rows = comparison([outcome.model for outcome in outcomes], outcomes, anchors=True)
    figure = standalone.figure(_AMONG, among_models([report for _, report in found], [row for row, _ in found]), "among") if found else ""
    return f"<article>{standalone.card(rows)}{figure}</article>"


def _article(report: DtypeReport, row: int, alone: bool) -> str:
    parts = [passport(report, links=False), evidence(report)]
    if said := plots.why_empty(report):
        parts.append(f'<p class="m-card m-say">{html(said)}</p>')
    else:
        parts.append(standalone.figure("Size of the weights", plots.spectrum(report), f"spectrum-{row}"))
        parts.append(standalone.figure("Largest magnitude by layer", plots.layers(report), f"layers-{row}"))
    if alone:
        parts.append(standalone.figure(_AMONG, among_models([report]), "among", place(report)))
    parts.append(_tensors(report))
    return standalone.article(row, parts)


def _tensors(report: DtypeReport) -> str:
    rows = [
        (
            shown(row.name),
            row.dtype,
            numbers.shape(row.shape),
            numbers.magnitude(row.abs_max),
            numbers.magnitude(row.norm),
            row.lineage.verdict,
        )
        for row in report.tensors
    ]
    what = "layers and roles" if report.tensors_aggregated else "tensors"
    listed = table(("Name", "Dtype", "Shape", "Largest", "Norm", "Lineage"), rows, frozenset({3, 4}))
    return standalone.folded(f"{len(rows):,} {what}", listed)
