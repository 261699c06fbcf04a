"""The command ``mantissa shrink MODEL --out DIR``."""

import argparse
from typing import get_args

from analyzers.checkpoints import Access
from analyzers.core.command_line import Parser, print_json, print_lines, with_progress
from analyzers.shrink.plan import Target
from analyzers.shrink.report import ShrinkReport


def add_options(parser: Parser) -> None:
    """Add the command's options."""
    parser.describe(
        "Store a checkpoint in fewer bytes without changing a value: each fp32 tensor in a 16-bit format that holds its values.",
        ("./checkpoint --out ./smaller", "the result is read back and compared before the folder gets its name"),
        ("org/name --out ./smaller --to bf16", "a model of the Hub, in bf16 where that holds every value"),
    )
    parser.add_argument("model", metavar="MODEL", help="org/name, org/name@revision, sample:NAME, ./folder or /file")
    parser.add_argument("--out", required=True, metavar="DIR", help="the folder to write, which must not exist")
    only = "consider only this format (default: bf16 and fp16)"
    parser.add_argument("--to", choices=get_args(Target), default="auto", help=only)
    request = "then open a pull request on the model's repository, with your own token"
    parser.add_argument("--pull-request", action="store_true", help=request)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(options: argparse.Namespace) -> int:
    """Shrink a checkpoint, open a pull request if requested, and print the report. Returns 0. Raises MantissaError."""
    from analyzers.shrink.run import shrink

    request = options.pull_request_on(options.model) if options.pull_request else None
    items = with_progress(shrink(options.model, options.out, options.to, Access(token=True, local=True)), options.model)
    (report,) = (item for item in items if isinstance(item, ShrinkReport))
    if request is not None and report.written:
        *_, address = with_progress(request.open(report), options.model)
        report = report.model_copy(update={"pull_request": address})
    if options.json:
        print_json(report.to_json(), "The report")
    else:
        print_lines(report.lines(), "The report")
    return 0
