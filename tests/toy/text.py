"""The report as text for a terminal."""

from tests.toy import ToyReport
from tests.toy.columns import COUNT


def one(report: ToyReport) -> list[str]:
    """The answer and the table."""
    return [report.headline(), "", *COUNT.lines(report)]
