"""The report as text for a terminal, and as Markdown."""

import re

from analyzers.check.report import CheckReport, Finding
from analyzers.terminal import clean, printable

_NAMED = 5


def one(report: CheckReport) -> str:
    """The headline and what to do, then each finding with what to do about it, and notes."""
    lines = [f"{report.checkpoint.ref} @ {report.checkpoint.commit[:12]}", "", *report.answer_lines()]
    for each in report.findings:
        lines += ["", f"{each.level} [{each.rule}] {each.title}", f"  {each.detail}", *([f"  {names(each)}"] if each.tensors else [])]
    return clean("\n".join([*lines, *(["", *report.notes] if report.notes else []), "", f"report {report.id}"]))


def names(finding: Finding) -> str:
    """The first tensors of a finding."""
    more = len(finding.tensors) - _NAMED
    return ", ".join(finding.tensors[:_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def markdown(report: CheckReport) -> str:
    """The report as Markdown. Names from the checkpoint are untrusted: nothing in them is markup, or notifies anybody."""
    lines = [f"### Mantissa check of {_plain(report.checkpoint.ref)}", "", _plain(report.headline())]
    if report.findings:
        lines += ["", "| level | rule | what was found |", "| --- | --- | --- |"]
    for each in report.findings:
        of = f" ({names(each)})" if each.tensors else ""
        lines.append(f"| {each.level} | {each.rule} | **{_plain(each.title)}**: {_plain(each.detail + of)} |")
    return "\n".join([*lines, *(["", *map(_plain, report.notes)] if report.notes else [])])


def _plain(text: str) -> str:
    escaped = re.sub(r"[\\`*_{}\[\]<>|~#$!]", lambda match: f"\\{match[0]}", printable(text))
    return escaped.replace("@", "&#64;").replace("://", ":&#8203;//")
