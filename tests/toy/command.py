"""Runs ``mantissa toy MODEL``."""

import argparse

from analyzers.checkpoints import Access
from analyzers.core.command_line import Parser, add_fields, add_outputs, request_of, write
from tests.toy import ToyReport, ToyRequest, analyze


def add_options(parser: Parser) -> None:
    """Add the command's options."""
    add_fields(parser, ToyRequest)
    add_outputs(parser)


def run(options: argparse.Namespace) -> int:
    """Count, and write the report."""
    reports = [item for item in analyze(request_of(ToyRequest, options), Access()) if isinstance(item, ToyReport)]
    write(options, reports, False)
    return 0
