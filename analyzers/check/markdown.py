"""Writes a report as Markdown, for a pull request or a job summary."""

from analyzers.check.report import CheckReport
from analyzers.core.markdown import plain


def markdown(report: CheckReport) -> list[str]:
    """Return the lines. Names from the checkpoint are untrusted and escaped: no markup, no link, no mention of a user."""
    lines = [f"### Mantissa check of {plain(report.checkpoint.ref)}", "", plain(report.headline)]
    if report.findings:
        lines += ["", "| level | rule | what was found |", "| --- | --- | --- |"]
    for each in report.findings:
        of = f" ({each.names()})" if each.tensors else ""
        lines.append(f"| {each.level} | {each.rule} | **{plain(each.title)}**: {plain(each.detail + of)} |")
    return [*lines, *(["", *(plain(note.text) for note in report.notes)] if report.notes else [])]
