"""Renders the tab Coverage: the classes of each checkpoint's tensors, what was left out, and which files were not read."""

from itertools import islice
from types import SimpleNamespace
from typing import Any

from analyzers.core.coverage import COVERAGE as TABLES
from analyzers.core.coverage import Coverage
from analyzers.core.report import Report
from components.results.layout import Piece, Tab
from components.results.tables import listed
from components.text import caption, html

# Most rows of a table of parts or files on the page; the downloads have all.
_LISTED = 200
CAPTION = (
    "Every stored tensor is in one class, and the classes add up to what the files hold. The share covered is of the weights, without tied "
    "copies and buffers."
)


def coverages(report: Report) -> list[Coverage]:
    """Return the accounts of all checkpoints of a report; empty if it has none."""
    return list(report.coverage)


def accounts(report: Report) -> str:
    """Render the account of each checkpoint."""
    found = SimpleNamespace(coverage=coverages(report))
    partial = "".join(f'<p class="m-say">{html(said)}</p>' for each in found.coverage if (said := each.suffix(each.ref)))
    return caption(CAPTION) + partial + "".join(listed(table, found, islice(table.rows(found), _LISTED)) for table in TABLES)


COVERAGE: Tab[Any] = Tab("Coverage", [Piece(accounts)], when=lambda report: bool(coverages(report)))
