"""Counts what the library holds, for its page and for the card of its dataset."""

import sqlite3

from components.library import model_rows
from components.library.consensus import PROPOSAL
from components.library.library_status import Counts

_MEASURED = "FROM models WHERE wasted IS NOT NULL AND model_key NOT GLOB 'sample:*'"


def refused(connection: sqlite3.Connection) -> int:
    """Count the rows and files of the dataset that were refused."""
    return int(connection.execute("SELECT COALESCE(SUM(refused), 0) FROM dataset_files").fetchone()[0])


def counts(connection: sqlite3.Connection) -> Counts:
    """Return the numbers of items."""
    row = connection.execute(
        "SELECT (SELECT COUNT(*) FROM labels), (SELECT COUNT(*) FROM labels WHERE current), "  # noqa: S608 - our own names
        "(SELECT COUNT(*) FROM models WHERE model_key NOT GLOB 'sample:*'), (SELECT COUNT(DISTINCT contributor) FROM labels), "
        "(SELECT COUNT(*) FROM results), (SELECT COUNT(*) FROM flags), (SELECT COALESCE(SUM(refused), 0) FROM dataset_files), "
        "(SELECT COUNT(*) FROM labels WHERE published = '') + (SELECT COUNT(*) FROM flags WHERE published = '') "
        "+ (SELECT COUNT(*) FROM results WHERE published = '' AND public), "
        f"(SELECT COUNT(*) FROM labels WHERE current AND {PROPOSAL}), (SELECT COUNT(*) FROM models WHERE precision <> '' OR disputed), "
        f"(SELECT COUNT(*) {_MEASURED}), (SELECT COALESCE(SUM(wasted), 0) {_MEASURED}), (SELECT COUNT(*) FROM results WHERE public)"
    ).fetchone()
    return Counts(**dict(zip(Counts.model_fields, (*row, model_rows.published_figures(connection)), strict=True)))
