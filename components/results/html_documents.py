"""Exports reports of any analyzer as one self-contained HTML page."""

from collections.abc import Sequence
from pathlib import Path

from analyzers import ANALYZERS
from analyzers.core.atomic_files import replacing
from analyzers.core.report import Report
from components.results.self_contained_page import Page


def write_html(reports: Sequence[Report], path: str | Path) -> None:
    """Write one page with the tables and plots of each report to ``path``. Raises OSError if writing fails."""
    with replacing(Path(path)) as file:
        file.write_text(document(reports), encoding="utf-8")


def document(reports: Sequence[Report]) -> str:
    """Render the page that `write_html` writes. All reports are of one analyzer."""
    return page_of(reports).alone()


def page_of(reports: Sequence[Report]) -> Page:
    """Return the parts of the page that `document` renders."""
    page: Page = ANALYZERS[reports[0].analyzer].component("result").RESULT.document(reports)
    return page
