"""``python -m analyzers parents MODEL [CANDIDATE ...]``."""

import argparse

from pydantic import ValidationError

from analyzers.base import request_error
from analyzers.checkpoints import Access
from analyzers.command_line import Parser, add_outputs, add_reading, check_outputs, reading, with_progress, write


def add_options(parser: Parser) -> None:
    """Add the command's options."""
    parser.describe(
        "Which models do these weights come from: a copy, a fine-tune, a merge (of what, in which proportions), or none of these?",
        ("org/merge org/first org/second", "the weight of each candidate, from a sample of 64 MB each, and how much of that is proven"),
        ("sample:tiny-tuned sample:tiny-bf16 sample:tiny-fp32 --exact", "of two candidates, the one it was tuned from"),
    )
    parser.add_argument("model", metavar="MODEL", help="org/name, org/name@revision, sample:NAME, ./folder or /file")
    candidates = "checkpoints it may come from (default: the base_model of its model card)"
    parser.add_argument("candidates", nargs="*", metavar="CANDIDATE", help=candidates)
    add_reading(parser)
    add_outputs(parser)


def run(options: argparse.Namespace) -> int:
    """Compare, and write the one report."""
    from analyzers.parents import ParentsReport, ParentsRequest, analyze, text

    try:
        request = ParentsRequest(model=options.model, candidates=tuple(options.candidates), **reading(options))
    except ValidationError as error:
        raise request_error(error) from None
    check_outputs(options)
    items = with_progress(analyze(request, Access(token=True, local=True)), request.model)
    reports = [item for item in items if isinstance(item, ParentsReport)]
    write(options, reports, False, lambda: text.one(reports[0]))
    return 0
