"""The command ``mantissa sparsity BASE TUNED [TUNED ...]``."""

import argparse

from analyzers.checkpoints import Access
from analyzers.comparison.sparsity.report import SparsityRequest
from analyzers.core.command_line import Parser, add_fields, add_outputs, request_of, write_one


def add_options(parser: Parser) -> None:
    """Add the command's options."""
    parser.describe(
        "What fraction of the weights differs between two models at bf16 resolution, where, and by how much?",
        ("Qwen/Qwen3-0.6B-Base Qwen/Qwen3-0.6B", "a base model and its fine-tune, from a sample of 64 MB each"),
        ("sample:tiny-bf16 sample:tiny-step-1 sample:tiny-tuned --exact", "a trajectory: each step against the base and the step before"),
    )
    add_fields(parser, SparsityRequest)
    add_outputs(parser)


def run(options: argparse.Namespace) -> int:
    """Compare the checkpoints and write the report. Returns the exit status."""
    from analyzers.comparison.sparsity import analyze

    request = request_of(SparsityRequest, options)
    return write_one(options, analyze(request, Access(token=True, local=True)), request.tuned[-1])
