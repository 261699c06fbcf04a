"""Reports of any analyzer as one self-contained HTML page."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analyzers.base import Report
from components.results.standalone import Page


def write_html(reports: Sequence[Report], path: str | Path) -> None:
    """Write one page with the tables and plots of each report to ``path``. Raises OSError if writing fails."""
    Path(path).write_text(document(reports), encoding="utf-8")


def document(reports: Sequence[Report]) -> str:
    """The page that `write_html` writes. All reports are of one analyzer."""
    return page_of(reports).alone()


def page_of(reports: Sequence[Report]) -> Page:
    """The same page as its parts.

    Imports only the analyzer it needs, so that commands without a model do not wait for torch and transformers.
    """
    each: Any = reports
    analyzer = reports[0].analyzer if reports else ""
    if analyzer == "conflict":
        from components.conflict.document import document as conflicts

        return conflicts(each)
    if analyzer == "exit":
        from components.exit.document import document as signals

        return signals(each)
    if analyzer == "precision":
        from components.precision.document import document as variants

        return variants(each)
    if analyzer == "sparsity":
        from components.sparsity.document import document as pairs

        return pairs(each)
    from components.passport.document import document as passports
    from components.passport.outcomes import Outcome

    return passports([Outcome(report.checkpoint.ref, report) for report in each])
