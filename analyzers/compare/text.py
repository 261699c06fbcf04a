"""The report as text for a terminal."""

from analyzers.compare.report import CompareReport
from analyzers.formatting import duration, size
from analyzers.parents import text as parents


def one(report: CompareReport) -> list[str]:
    """Return the lines of a report: the answer, then those of the reports that it is composed of."""
    lines = [f"{', '.join(report.subject().values())}; read {size(report.bytes_read)} in {duration(report.timing.seconds)}", ""]
    lines += [*report.answer_lines(), "", "Where the weights come from", "", *parents.one(report.parents)]
    if report.sparsity is not None:
        lines += ["", "What changed", "", *report.sparsity.lines(full=True)]
    return [*lines, "", f"comparison {report.id}"]
