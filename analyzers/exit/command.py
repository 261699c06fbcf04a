"""The command ``mantissa exit MODEL``."""

import argparse

from analyzers.checkpoints import Access
from analyzers.core.command_line import Parser, add_fields, add_outputs, request_of, write_one
from analyzers.exit.analyze import analyze
from analyzers.exit.request import ExitRequest


def add_options(parser: Parser) -> None:
    """Add the command's options. An option that is not given keeps the request's default."""
    parser.describe(
        "How close is a cheap gradient at the LM head, computed without backpropagation, to the exact one?",
        ("HuggingFaceTB/SmolLM2-135M --methods parallel,span", "two signals on the built-in text"),
        ("sample:tiny-bf16 --no-sweep --json", "the measurement alone, as JSON"),
    )
    add_fields(parser, ExitRequest)
    add_outputs(parser)


def run(options: argparse.Namespace) -> int:
    """Run the analysis and write its report. Returns the exit status."""
    request = request_of(ExitRequest, options)
    return write_one(options, analyze(request, Access(token=True, local=True)), request.model)
