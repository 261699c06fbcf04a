"""``python -m analyzers sparsity BASE TUNED [TUNED ...]``."""

import argparse

from pydantic import ValidationError

from analyzers.base import request_error
from analyzers.checkpoints import Access
from analyzers.command_line import Parser, add_outputs, add_reading, check_outputs, reading, with_progress, write
from analyzers.update_sparsity.report import DEFAULT_ETA


def add_options(parser: Parser) -> None:
    """Add the command's options."""
    parser.describe(
        "What fraction of the weights did this fine-tune change at bf16 resolution, where, and by how much?",
        ("Qwen/Qwen3-0.6B-Base Qwen/Qwen3-0.6B", "a base model and its fine-tune, from a sample of 64 MB each"),
        ("sample:tiny-bf16 sample:tiny-step-1 sample:tiny-tuned --exact", "a trajectory: each step against the base and the step before"),
    )
    parser.add_argument("base", metavar="BASE", help="org/name, org/name@revision, sample:NAME, ./folder or /file")
    parser.add_argument("tuned", nargs="+", metavar="TUNED", help="what became of it; several in the order of the training")
    parser.add_argument("--eta", type=float, default=DEFAULT_ETA, help=f"of the probe |v-w| > eta max(|w|,|v|) (default {DEFAULT_ETA:g})")
    parser.add_argument("--spectral", action="store_true", help="also singular values and subspaces of matrices: minutes, and needs torch")
    add_reading(parser)
    add_outputs(parser, tensors=True)


def run(options: argparse.Namespace) -> int:
    """Compare, and write the one report."""
    from analyzers.update_sparsity import SparsityReport, SparsityRequest, analyze, text

    try:
        request = SparsityRequest(
            base=options.base, tuned=tuple(options.tuned), eta=options.eta, spectral=options.spectral, **reading(options)
        )
    except ValidationError as error:
        raise request_error(error) from None
    check_outputs(options)
    items = with_progress(analyze(request, Access(token=True, local=True)), request.tuned[-1])
    reports = [item for item in items if isinstance(item, SparsityReport)]
    write(options, reports, False, lambda: text.one(reports[0]), text.tensors)
    return 0
