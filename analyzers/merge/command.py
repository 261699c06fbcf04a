"""The command ``mantissa merge BASE+ADAPTER --out DIR``."""

import argparse
from typing import get_args

from analyzers.checkpoints import Access
from analyzers.core.command_line import Parser, print_json, print_lines, with_progress
from analyzers.merge.report import MergeReport, Target


def add_options(parser: Parser) -> None:
    """Add the command's options."""
    parser.describe(
        "Write a base with an adapter (LoRA, rsLoRA, DoRA) merged in, computed in fp32, and tell what its dtype loses of the update.",
        ("org/base+org/adapter --out ./merged", "the result is read back and compared before the folder gets its name"),
        ("./base+0.7*./one+0.3*./other --out ./merged --to bf16 --json", "two adapters, with weights"),
    )
    parser.add_argument("model", metavar="BASE+ADAPTER", help="or an adapter alone, if its configuration names its base")
    parser.add_argument("--out", required=True, metavar="DIR", help="the folder to write, which must not exist")
    parser.add_argument("--to", choices=get_args(Target), default="fp32", help="dtype of the stored weights (default: fp32)")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(options: argparse.Namespace) -> int:
    """Merge, and print the report. Returns 0. Raises MantissaError."""
    from analyzers.merge.run import merge

    items = with_progress(merge(options.model, options.out, options.to, Access(token=True, local=True)), options.model)
    (report,) = (item for item in items if isinstance(item, MergeReport))
    if options.json:
        print_json(report.to_json(), "The report")
    else:
        print_lines(report.lines(), "The report")
    return 0
