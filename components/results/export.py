"""Reports of any analyzer as one self-contained HTML page."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analyzers.base import Report
from components.conflict.document import document as conflicts
from components.exit.document import document as signals
from components.passport.document import document as passports
from components.passport.outcomes import Outcome
from components.precision.document import document as variants
from components.results.standalone import Page
from components.sparsity.document import document as pairs


def write_html(reports: Sequence[Report], path: str | Path) -> None:
    """Write one page with the tables and the plots of each report to ``path``. Raises OSError where the file cannot be written."""
    Path(path).write_text(document(reports), encoding="utf-8")


def document(reports: Sequence[Report]) -> str:
    """The page that `write_html` writes. All reports are of one analyzer."""
    return page_of(reports).alone()


def page_of(reports: Sequence[Report]) -> Page:
    """The same as its parts."""
    each: Any = reports
    analyzer = reports[0].analyzer if reports else ""
    if analyzer == "conflict":
        return conflicts(each)
    if analyzer == "exit":
        return signals(each)
    if analyzer == "precision":
        return variants(each)
    if analyzer == "sparsity":
        return pairs(each)
    return passports([Outcome(report.checkpoint.ref, report) for report in each])
