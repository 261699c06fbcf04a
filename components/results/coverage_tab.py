"""Renders the tab Coverage: for each checkpoint, what was covered, what was left out and why, and which files were not read."""

from collections.abc import Sequence
from typing import Any

from analyzers.base import Report
from analyzers.columns import Table
from analyzers.coverage import Coverage
from analyzers.coverage_tables import CLASS_COUNTS, LEFT_OUT, NOT_READ, covered_text
from analyzers.records import Record
from components.results.layout import Piece, Tab
from components.results.tables import listed
from components.text import caption, macros

_PARTS = macros("results/templates/coverage.html")
# Most rows of a table of parts or files on the page; the downloads have all.
_LISTED = 200
CAPTION = (
    "Every stored tensor is in one class, and the classes add up to what the files hold. The share covered is of the weights, without tied "
    "copies and buffers."
)


def coverages(report: Report) -> list[Coverage]:
    """Return the accounts of all checkpoints of a report; empty if it has none."""
    return list(getattr(report, "coverage", ())) or list(report.accounts())


def accounts(report: Report) -> str:
    """Render the account of each checkpoint; those that the answer depends on are open."""
    answering = list(report.accounts())
    return caption(CAPTION) + "".join(_account(each, each in answering, report.covers) for each in coverages(report))


def _account(coverage: Coverage, open_: bool, verb: str) -> str:
    classes = "" if coverage.whole else listed(CLASS_COUNTS, coverage)
    parts = _first(LEFT_OUT, coverage.left_out), _first(NOT_READ, coverage.files_not_read)
    return _PARTS.account(coverage, open_, covered_text(coverage, verb), classes, *parts)


def _first(declared: Table, parts: Sequence[Record]) -> str:
    """The first rows of a table, and how many there are."""
    more = f" ({len(parts):,}, the first {_LISTED} listed here)" if len(parts) > _LISTED else ""
    return listed(declared, None, map(vars, parts[:_LISTED]), f"{declared.title}{more}")


COVERAGE: Tab[Any] = Tab("Coverage", [Piece(accounts)], when=lambda report: bool(coverages(report)))
