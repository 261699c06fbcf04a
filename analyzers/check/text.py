"""The report as text for a terminal, and as Markdown."""

from analyzers import markdown as md
from analyzers.check.report import CheckReport, Finding
from analyzers.coverage import coverage_lines

_NAMED = 5


def one(report: CheckReport) -> list[str]:
    """Return the lines of a report: answer, each finding with its details, and notes."""
    lines = [f"{report.checkpoint.ref} @ {report.checkpoint.short_commit()}", "", *report.answer_lines()]
    for each in report.findings:
        lines += ["", f"{each.level} [{each.rule}] {each.title}", f"  {each.detail}", *([f"  {names(each)}"] if _named(each) else [])]
    notes = ["", *_notes(report)] if _notes(report) else []
    return [*lines, *notes, *coverage_lines(report), "", f"report {report.id}"]


def _notes(report: CheckReport) -> list[str]:
    """Return the notes except those on files that were not read, which the findings name."""
    return [note for note in report.notes if not note.startswith("Not read")]


def _named(finding: Finding) -> bool:
    """Tell whether names follow the details of a finding; for files that were not read, the details already contain them."""
    return bool(finding.tensors) and finding.rule != "not-read"


def names(finding: Finding) -> str:
    """Write the names of the first tensors of a finding, and how many more there are."""
    more = len(finding.tensors) - _NAMED
    return ", ".join(finding.tensors[:_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def markdown(report: CheckReport) -> list[str]:
    """Write the report as Markdown. Names from the checkpoint are untrusted and escaped: no markup, no link, no mention of a user."""
    lines = [f"### Mantissa check of {md.plain(report.checkpoint.ref)}", "", md.plain(report.headline())]
    if report.findings:
        lines += ["", "| level | rule | what was found |", "| --- | --- | --- |"]
    for each in report.findings:
        of = f" ({names(each)})" if _named(each) else ""
        lines.append(f"| {each.level} | {each.rule} | **{md.plain(each.title)}**: {md.plain(each.detail + of)} |")
    return [*lines, *(["", *map(md.plain, _notes(report))] if _notes(report) else [])]
