"""Writes the report as text for a terminal."""

from tests.toy import ToyReport
from tests.toy.columns import COUNT


def one(report: ToyReport) -> list[str]:
    """Return the lines of the answer and the table."""
    return [report.headline(), "", *COUNT.lines(report)]
