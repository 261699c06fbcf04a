"""The command ``mantissa conflict MODEL``."""

import argparse

from analyzers.checkpoints import Access
from analyzers.conflict.analyze import analyze
from analyzers.conflict.request import TOPK_OPTIONS, ConflictRequest
from analyzers.core.command_line import Parser, add_fields, add_outputs, given_options, request_of, write_one
from analyzers.core.errors import InvalidRequest


def add_options(parser: Parser) -> None:
    """Add the command's options. An option that is not given keeps the request's default."""
    parser.describe(
        "Do training samples pull the same neuron in opposite directions? Does one of them dominate? What does a top-k FFN change?",
        ("HuggingFaceTB/SmolLM2-135M --data pairs.jsonl --samples 20", "20 random instruction-answer pairs of a file"),
        ("sample:tiny-bf16 --ffn topk --topk 0.125", "the same samples with a top-k FFN that keeps an eighth of the neurons"),
    )
    add_fields(parser, ConflictRequest)
    add_outputs(parser)


def run(options: argparse.Namespace) -> int:
    """Run the analysis and write its report. Returns the exit status."""
    idle = next(iter(given_options(options, TOPK_OPTIONS)), None)
    if idle is not None and options.ffn != "topk":
        raise InvalidRequest(f"--{idle.replace('_', '-')} concerns a top-k FFN only: add --ffn topk.")
    request = request_of(ConflictRequest, options)
    return write_one(options, analyze(request, Access(token=True, local=True)), request.model)
