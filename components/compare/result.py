"""Lays out the result of compare: the answer, the measures that support it, and the tabs of parents and of update sparsity."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from analyzers.compare.report import CompareReport
from components.compare.verdicts import verdicts
from components.forms.form import command, permalink
from components.parents.result import RESULT as PARENTS
from components.parents.result import families
from components.parents.result import measures as resemblance
from components.results.answer import measures as changes
from components.results.coverage_tab import COVERAGE
from components.results.layout import Layout, Piece, Tab
from components.sparsity.result import RESULT as SPARSITY
from components.text import numbers
from components.text.headline import about_sample, answered, card, short
from components.text.markup import head, notes
from components.text.plain_text import html, shown
from components.text.render import macros

_PIECES = macros("parents/templates/parents.html")


def headline(report: CompareReport, links: bool = True) -> str:
    """Render the models, the answer and its measures. links: include those that work only on the app's pages."""
    named = ", ".join(f"{html(name)}{short(facts)}" for name, facts in zip(report.request.models, report.models, strict=True))
    others = f" <small>and {numbers.plural(len(report.candidates), 'model')} named by its card or the library</small>"
    facts = f"Read {numbers.size(report.bytes_read)} in {numbers.duration(report.timing.seconds)}"
    changed = {note.text for note in report.sparsity.notes} if report.sparsity else set()
    own = [note for note in report.notes if note not in {*report.parents.notes, *changed}]
    return card(
        "Comparison",
        head(f"{named}{others if report.candidates else ''}", facts),
        answered(report, report.headline(), links),
        about_sample(report.relation.model, shows=True),
        _measures(report, links),
        notes([*own, *report.parents.notes]),
        str(_PIECES.families(families(report.parents))) if links else "",
    )


def _is_fine_tune(report: CompareReport) -> bool:
    return report.relation.kind == "derived" and report.sparsity is not None


def _measures(report: CompareReport, links: bool) -> str:
    """Render the tiles of the report that the answer rests on; those of the other one are in its first tab."""
    if report.sparsity is not None and _is_fine_tune(report):
        return changes(report.sparsity, links)
    return resemblance(report.parents, links)


def _resemblance(report: CompareReport) -> str:
    return resemblance(report.parents, False) if _is_fine_tune(report) else ""


def _changes(report: CompareReport) -> str:
    return "" if report.sparsity is None or _is_fine_tune(report) else changes(report.sparsity, False)


def _tabs(tabs: Sequence[Tab[Any]], part: str, measures: Callable[[CompareReport], str]) -> list[Tab[Any]]:
    """Return the tabs of the report ``part``, with its measures in the first one; that on coverage is shared."""
    first, *others = (tab.of(attrgetter(part)) for tab in tabs if tab is not COVERAGE)
    return [replace(first, parts=[Piece(measures), *first.parts]), *others]


RESULT: Layout[CompareReport] = Layout(
    "Comparison",
    lambda report: shown(", ".join(report.request.models)),
    headline,
    permalink,
    command,
    (*_tabs(PARENTS.tabs, "parents", _resemblance), *_tabs(SPARSITY.tabs, "sparsity", _changes), COVERAGE),
    related=lambda report: families(report.parents),
    verdicts=verdicts,
)
