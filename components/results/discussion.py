"""Writes a result as Markdown for a discussion on the Hub or an issue: the answer, the link and the command."""

from analyzers.core import markdown as md
from analyzers.core.report import Report
from analyzers.core.terminal import joined, printable
from components.results.layout import Layout


def discussion(layout: Layout[Report], report: Report, link: str, command: str) -> str:
    """Return the Markdown of ``report``. link: the address of the result; command: computes it again, on one line.

    Names from the checkpoints are untrusted: they cannot contain markup or links, or notify anybody.
    """
    answer = layout.markdown(report) if layout.markdown is not None else _answer(layout, report)
    return joined([*answer, "", f"[The whole result]({link}), computed with Mantissa:", "", f"    {printable(command)}"])


def _answer(layout: Layout[Report], report: Report) -> list[str]:
    lines = [
        f"### {layout.title} of {md.plain(' → '.join(report.subject().values()))}",
        "",
        md.plain(layout.summary(report)),
        "",
        md.plain(f"What now: {report.advice.text}"),
    ]
    rows = [(verdict.question, verdict.answer, verdict.how) for verdict in layout.verdicts(report)]
    return [*lines, "", *md.table(("question", "answer", "evidence"), rows)] if rows else lines
