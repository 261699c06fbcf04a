"""What the lines of each figure stand for."""

from typing import TYPE_CHECKING

from components.exit.names import NULL, styles
from components.text.legend import legend

if TYPE_CHECKING:
    from analyzers.exit_feedback.report import ExitReport


def signals(report: "ExitReport") -> str:
    """Every signal asked for."""
    return _drawn(list(report.methods))


def swept(report: "ExitReport") -> str:
    """The same, and the null where there is one."""
    return _drawn([*report.methods, *([NULL] if report.null is not None else [])])


def trained(report: "ExitReport") -> str:
    """Whatever the trunk was trained under."""
    return _drawn([row.method for row in report.training])


def _drawn(names: list[str]) -> str:
    return legend(names, styles=styles(names))
