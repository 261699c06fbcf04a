"""The command ``mantissa check MODEL [--base BASE]``."""

import argparse
from typing import get_args

from analyzers.check.report import CheckReport, CheckRequest, FailOn
from analyzers.checkpoints import Access
from analyzers.core.command_line import Parser, add_fields, add_outputs, check_outputs, request_of, with_progress, write
from analyzers.core.errors import InvalidRequest


def add_options(parser: Parser) -> None:
    """Add the command's options."""
    parser.describe(
        "Will this upload load, and is it what it claims? Reads every value. Exits with 1 if a finding is at least as severe as --fail-on.",
        ("./checkpoint --fail-on warning", "before an upload: fails if anything needs fixing"),
        ("./checkpoint --base org/model --markdown", "compared with the base as well; formatted for a pull request"),
    )
    add_fields(parser, CheckRequest)
    parser.add_argument(
        "--fail-on", choices=get_args(FailOn), default="error", help="the least severe finding that fails the check (default: error)"
    )
    add_outputs(parser)
    parser.add_argument("--markdown", action="store_true", help="print the report as Markdown, for a pull request or a job summary")


def run(options: argparse.Namespace) -> int:
    """Check the model and write the report. Returns 1 if a finding reaches ``--fail-on``, else 0."""
    from analyzers.check.analyze import analyze
    from analyzers.check.markdown import markdown

    if options.json and options.markdown:
        raise InvalidRequest("Give either --json or --markdown.")
    request = request_of(CheckRequest, options)
    check_outputs(options)
    items = with_progress(analyze(request, Access(token=True, local=True)), request.model)
    (report,) = (item for item in items if isinstance(item, CheckReport))
    write(options, [report], False, (lambda: markdown(report)) if options.markdown else None)
    return int(report.fails(options.fail_on))
