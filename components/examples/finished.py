"""Renders the finished example of a page, from a stored report of the page's first example button.

The figures are stored, because running a model takes seconds; the sentences are made of them each time. ``tests.examples.build`` stores
the reports again.
"""

import gzip
from pathlib import Path
from typing import Any

from analyzers import ANALYZERS
from components.site import addresses
from components.text import render

FOLDER = Path(__file__).parent / "reports"


def finished_example(analyzer: str) -> str:
    """Render the stored result of an analyzer, marked as an example, as HTML; "" if it has none."""
    if not path(analyzer).exists():
        return ""
    report = stored(analyzer)
    return render(
        "examples/templates/finished.html",
        answers=addresses.layout(analyzer).headline(report, False),
        address=addresses.as_requested(report.request),
    )


def stored(analyzer: str) -> Any:
    """Read the stored report of an analyzer."""
    return ANALYZERS[analyzer].report_model().model_validate_json(gzip.decompress(path(analyzer).read_bytes()))


def path(analyzer: str) -> Path:
    """Return the file of the stored report."""
    return FOLDER / f"{analyzer}.json.gz"
