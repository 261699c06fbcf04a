"""Reports a check in GitHub Actions: ``python -m analyzers.check.annotate REPORT.json`` adds the report to the job's summary.

Prints a workflow command for each finding, which annotates the run. If the file is empty, as after bad input, the one line on standard
input is the annotation.
"""

import os
import sys
from pathlib import Path

from analyzers.check.markdown import markdown
from analyzers.check.report import CheckReport, Level
from analyzers.core.command_line import print_text
from analyzers.core.terminal import joined, printable
from analyzers.core.untrusted_json import parse_model

_COMMANDS: dict[Level, str] = {"error": "error", "warning": "warning", "info": "notice"}


def main(path: str) -> None:
    """Annotate the run with the report in the file ``path``, which ``check --json`` wrote."""
    text = Path(path).read_text(encoding="utf-8")
    if not text.strip():
        print_text(_command("error", "Not checked", sys.stdin.read().strip()), "The annotation")
        return
    report = parse_model(CheckReport, text)
    with Path(os.environ["GITHUB_STEP_SUMMARY"]).open("a", encoding="utf-8") as summary:
        summary.write(f"{joined(markdown(report))}\n")
    for each in report.findings:
        of = f" Tensors: {each.names()}" if each.tensors else ""
        print_text(_command(_COMMANDS[each.level], f"{each.rule}: {each.title}", each.detail + of), "The annotation")


def _command(name: str, title: str, said: str) -> str:
    """Write a workflow command on one line, escaped so that its text can neither end it nor begin another one."""
    property_value = printable(title).replace("%", "%25").replace(":", "%3A").replace(",", "%2C")
    return f"::{name} title={property_value}::{printable(said).replace('%', '%25')}"


if __name__ == "__main__":
    main(sys.argv[1])
