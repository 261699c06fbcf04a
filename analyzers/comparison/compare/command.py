"""The command ``mantissa compare MODEL [MODEL ...]``."""

import argparse

from analyzers.checkpoints import Access
from analyzers.comparison.compare.report import CompareRequest
from analyzers.core.command_line import Parser, add_fields, add_outputs, request_of, write_one


def add_options(parser: Parser) -> None:
    """Add the command's options."""
    parser.describe(
        "What are these checkpoints to each other: the same in another form, a fine-tune, a merge, a stack of layers, or unrelated?",
        ("org/first org/second org/merge", "which one is a merge of the others, and with which weights"),
        ("sample:tiny-bf16 sample:tiny-step-1 sample:tiny-tuned --exact", "a trajectory, in this order"),
    )
    add_fields(parser, CompareRequest)
    add_outputs(parser)


def run(options: argparse.Namespace) -> int:
    """Compare the models and write the report. Returns the exit status."""
    from analyzers.comparison.compare import analyze

    request = request_of(CompareRequest, options)
    return write_one(options, analyze(request, Access(token=True, local=True)), request.models[-1])
