"""The report as text for a terminal, and as Markdown."""

from analyzers import markdown as md
from analyzers.check.report import CheckReport, Finding
from analyzers.coverage_tables import coverage_lines

_NAMED = 5


def one(report: CheckReport) -> list[str]:
    """The headline and what to do, then each finding with what to do about it, and notes."""
    lines = [f"{report.checkpoint.ref} @ {report.checkpoint.commit[:12]}", "", *report.answer_lines()]
    for each in report.findings:
        lines += ["", f"{each.level} [{each.rule}] {each.title}", f"  {each.detail}", *([f"  {names(each)}"] if _named(each) else [])]
    notes = ["", *_notes(report)] if _notes(report) else []
    return [*lines, *notes, *coverage_lines(report), "", f"report {report.id}"]


def _notes(report: CheckReport) -> list[str]:
    """The notes without those on files that were not read, which findings name."""
    return [note for note in report.notes if not note.startswith("Not read")]


def _named(finding: Finding) -> bool:
    """Whether names follow the details; those of files that were not read are in the details."""
    return bool(finding.tensors) and finding.rule != "not-read"


def names(finding: Finding) -> str:
    """The first tensors of a finding."""
    more = len(finding.tensors) - _NAMED
    return ", ".join(finding.tensors[:_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def markdown(report: CheckReport) -> list[str]:
    """The report as Markdown. Names from the checkpoint are untrusted: nothing in them is markup, a link, or notifies anybody."""
    lines = [f"### Mantissa check of {md.plain(report.checkpoint.ref)}", "", md.plain(report.headline())]
    if report.findings:
        lines += ["", "| level | rule | what was found |", "| --- | --- | --- |"]
    for each in report.findings:
        of = f" ({names(each)})" if _named(each) else ""
        lines.append(f"| {each.level} | {each.rule} | **{md.plain(each.title)}**: {md.plain(each.detail + of)} |")
    return [*lines, *(["", *map(md.plain, _notes(report))] if _notes(report) else [])]
