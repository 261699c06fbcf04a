"""``mantissa exit MODEL``."""

import argparse

from analyzers.checkpoints import Access
from analyzers.command_line import Parser, add_fields, add_outputs, described, request_of, write_one
from analyzers.exit_feedback.request import ExitRequest
from analyzers.language_models.bounded_process import prepare


def add_options(parser: Parser) -> None:
    """The options of the command. One that is not given is left to the request's default."""
    parser.describe(
        "How close is a cheap gradient at the LM head, computed without backpropagation, to the exact one?",
        ("HuggingFaceTB/SmolLM2-135M --methods parallel,span", "two signals on the built-in text"),
        ("sample:tiny-bf16 --no-sweep --json", "the measurement alone, as JSON"),
    )
    parser.add_argument("model", metavar="MODEL", help=described(ExitRequest, "model"))
    add_fields(parser, ExitRequest, "methods", "rank", "rank_exact", "rank_tail", "k", "topk_by", "alpha")
    parser.add_argument("--residual", "--lambda", type=float, metavar="X", help=described(ExitRequest, "residual"))
    add_fields(parser, ExitRequest, "mass_threshold", "anchors", "seeds")
    parser.add_argument("--no-sweep", dest="sweep", action="store_false", help="skip other ranks, ks and anchors: faster")
    add_fields(parser, ExitRequest, "layers", "data", "samples", "sequence_length", "tokens")
    add_fields(parser, ExitRequest, "dtype", "device", "offload", "seed")
    add_outputs(parser)


def run(options: argparse.Namespace) -> int:
    """Measure, and write the one report."""
    prepare()
    from analyzers.exit_feedback import analyze, text

    methods = {} if options.methods is None else {"methods": tuple(name.strip() for name in options.methods.split(","))}
    request = request_of(ExitRequest, options, **methods)
    return write_one(options, analyze(request, Access(token=True, local=True)), request.model, text.one)
