"""Renders the tab Coverage: for each checkpoint, what was covered, what was left out and why, and which files were not read."""

from typing import Any

from analyzers.account import class_rows, covered
from analyzers.base import Report
from analyzers.coverage import Coverage
from analyzers.formatting import NOTHING
from components.results.layout import Piece, Tab
from components.text import numbers
from components.text.markup import caption, table
from components.text.plain_text import shown
from components.text.render import macros

_PARTS = macros("results/templates/coverage.html")
# Most rows of a table of parts or files on the page; the downloads have all.
_LISTED = 200
CAPTION = (
    "Every stored tensor is in one class, and the classes add up to what the files hold. The share covered is of the weights, without tied "
    "copies and buffers."
)


def coverages(report: Report) -> list[Coverage]:
    """Return the accounts of all checkpoints of a report; empty if it has none."""
    return list(getattr(report, "coverage", ()))


def accounts(report: Report) -> str:
    """Render the account of each checkpoint; those that the answer depends on are open."""
    answering = list(report.accounts())
    return caption(CAPTION) + "".join(_account(each, each in answering, report.covers) for each in coverages(report))


def _account(coverage: Coverage, open_: bool, verb: str) -> str:
    titles = ("Class", "Tensors", "Parameters", "Share", "Bytes")
    classes = "" if coverage.whole else table(titles, class_rows(coverage), frozenset(range(1, 5)), stacked=True)
    return str(_PARTS.account(coverage, open_, covered(coverage, verb), classes, _left_out(coverage), _files(coverage)))


def _left_out(coverage: Coverage) -> str:
    rows = [
        (shown(each.what), numbers.count(each.tensors), _known(each.parameters), shown(each.why, 500))
        for each in coverage.left_out[:_LISTED]
    ]
    titles = ("What", "Tensors", "Parameters", "Why")
    return table(titles, rows, frozenset({1, 2}), _more("Left out", len(coverage.left_out)), stacked=True) if rows else ""


def _known(parameters: int | None) -> str:
    return NOTHING if parameters is None else numbers.count(parameters)


def _files(coverage: Coverage) -> str:
    rows = [
        (shown(each.path), "a copy, by its name" if each.alternative else "may hold weights", shown(each.why, 500))
        for each in coverage.files_not_read[:_LISTED]
    ]
    return (
        table(("File", "What it is", "Why"), rows, caption=_more("Files not read", len(coverage.files_not_read)), stacked=True)
        if rows
        else ""
    )


def _more(name: str, count: int) -> str:
    return f"{name} ({count:,}, the first {_LISTED} listed here)" if count > _LISTED else name


COVERAGE: Tab[Any] = Tab("Coverage", [Piece(accounts)], when=lambda report: bool(coverages(report)))
