"""The command ``mantissa parents MODEL [CANDIDATE ...]``."""

import argparse

from analyzers.checkpoints import Access
from analyzers.comparison.parents.report import ParentsRequest
from analyzers.core.command_line import Parser, add_fields, add_outputs, request_of, write_one


def add_options(parser: Parser) -> None:
    """Add the command's options."""
    parser.describe(
        "Which models do these weights come from: a copy, a fine-tune, a merge (of what, in which proportions), or none of these?",
        ("org/merge org/first org/second", "the weight of each candidate, from a sample of 64 MB each, and how much of that is proven"),
        ("sample:tiny-tuned sample:tiny-bf16 sample:tiny-fp32 --exact", "which of two candidates it was tuned from"),
    )
    add_fields(parser, ParentsRequest)
    add_outputs(parser)


def run(options: argparse.Namespace) -> int:
    """Compare the model with the candidates and write the report. Returns the exit status."""
    from analyzers.comparison.parents import analyze

    request = request_of(ParentsRequest, options)
    return write_one(options, analyze(request, Access(token=True, local=True)), request.model)
