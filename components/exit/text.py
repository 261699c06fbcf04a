"""The style of each signal in every figure, and the legends."""

from collections.abc import Iterable

from analyzers.exit_feedback.report import ExitReport
from analyzers.exit_feedback.signals import EXACT, NULL
from analyzers.exit_feedback.words import signal_name
from components.text.legend import legend

# Styles of `plots.marks.marked` by number, the same in every figure. References for the signals are grey.
_STYLES = {
    "dense": 0, "hybrid": 8, "parallel": 1, "parallel_gold": 3, "parallel_topmass": 4, "span": 2, "svd": 6, "true_rows": 7,
    EXACT: 5, NULL: 23,
}  # fmt: skip


def style(name: str) -> int:
    """Return the number of the color, dash and marker of a signal or of a reference."""
    return _STYLES.get(name, 0)


def styles(names: Iterable[str]) -> list[int]:
    """Return the styles of several signals."""
    return [style(name) for name in names]


def signal_legend(report: ExitReport) -> str:
    """Return the legend of every signal requested, and of the null if it was measured."""
    names = [*report.methods, *([NULL] if report.null is not None else [])]
    return legend(map(signal_name, names), styles=styles(names))
