"""``python -m analyzers check MODEL [--base BASE]``: what it prints, and its exit status."""

import argparse
import re
from typing import get_args

from analyzers.check.report import CheckReport, FailOn, Finding
from analyzers.checkpoints import Access
from analyzers.command_line import Parser, print_answer, with_progress
from analyzers.formatting import plural
from analyzers.terminal import clean, printable

_NAMED = 5


def add_options(parser: Parser) -> None:
    """Add the command's options."""
    parser.describe(
        "Is this upload what it claims to be, and what does it waste? Reads all of it. Exit status 1 where a finding reaches --fail-on.",
        ("./checkpoint --fail-on warning", "before an upload: fails if there is anything to mend"),
        ("./checkpoint --base org/model --markdown", "also compared with the base; the answer for a pull request"),
    )
    parser.add_argument("model", metavar="MODEL", help="org/name, org/name@revision, sample:NAME, ./folder or /file")
    parser.add_argument("--base", metavar="BASE", help="the checkpoint it was trained from: also compare with that")
    parser.add_argument("--fail-on", choices=get_args(FailOn), default="error", help="the mildest level that fails (default: error)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the report as JSON")
    form.add_argument("--markdown", action="store_true", help="print the report as Markdown, for a pull request or a job summary")


def run(options: argparse.Namespace) -> int:
    """Check as the command line says; returns 1 where a finding reaches ``--fail-on``, else 0. Raises MantissaError."""
    from analyzers.check.run import check

    status = 0
    for item in with_progress(check(options.model, options.base, Access(token=True, local=True)), options.model):
        if isinstance(item, CheckReport):
            answer = item.model_dump_json(indent=2) if options.json else markdown(item) if options.markdown else _text(item)
            print_answer(answer, options.json, "The check is finished, but its report")
            status = int(item.fails(options.fail_on))
    return status


def _headline(report: CheckReport) -> str:
    saved = f" {report.saving_bytes:,} of {report.bytes:,} bytes could be saved." if report.saving_bytes else ""
    return f"{plural(len(report.findings), 'finding')}.{saved}" if report.findings else "Nothing found."


def _text(report: CheckReport) -> str:
    lines = [f"{report.model}: {_headline(report)}"]
    for each in report.findings:
        lines += ["", f"{each.level} [{each.rule}] {each.title}", f"  {each.detail}", *([f"  {_names(each)}"] if each.tensors else [])]
    return clean("\n".join([*lines, *(["", *report.notes] if report.notes else [])]))


def _names(finding: Finding) -> str:
    more = len(finding.tensors) - _NAMED
    return ", ".join(finding.tensors[:_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def markdown(report: CheckReport) -> str:
    """The report as Markdown. Names from the checkpoint are untrusted: nothing in them is markup, or notifies anybody."""
    lines = [f"### Mantissa check of {_plain(report.model)}", "", _plain(_headline(report))]
    if report.findings:
        lines += ["", "| level | rule | what was found |", "| --- | --- | --- |"]
    for each in report.findings:
        names = f" ({_names(each)})" if each.tensors else ""
        lines.append(f"| {each.level} | {each.rule} | **{_plain(each.title)}**: {_plain(each.detail + names)} |")
    return "\n".join([*lines, *(["", *map(_plain, report.notes)] if report.notes else [])])


def _plain(text: str) -> str:
    escaped = re.sub(r"[\\`*_{}\[\]<>|~#$!]", lambda match: f"\\{match[0]}", printable(text))
    return escaped.replace("@", "&#64;").replace("://", ":&#8203;//")
