"""The report as text for a terminal."""

from typing import TYPE_CHECKING

from analyzers.exit_feedback.columns import BY_LAYER, COST, ENERGY, SEEDS, SIGNALS, SWEPT
from analyzers.formatting import duration
from analyzers.terminal import plural

if TYPE_CHECKING:
    from analyzers.exit_feedback.report import ExitReport


def one(report: "ExitReport") -> list[str]:
    """Return the lines of a report: answer, methods, energy, seeds, layers, sweep, cost and notes."""
    head, inputs = report.head, report.inputs
    lines = [
        f"{report.checkpoint.ref} @ {report.checkpoint.short_commit()}: head {head.vocabulary:,} x {head.width:,}, "
        f"{plural(inputs.measured, 'token')} of {plural(inputs.samples, 'sample')} ({inputs.source}), {report.dtype}; "
        f"{duration(report.timing.seconds)}",
        "",
        *report.answer_lines(),
        *filter(None, [report.cost.statement]),
    ]
    for table in (SIGNALS, ENERGY, SEEDS, BY_LAYER, SWEPT, COST):
        rows = table.lines(report)
        lines += ["", *rows] if rows else []
    return [*lines, "", *report.notes, f"report {report.id}"]
