"""``python -m analyzers exit MODEL``."""

import argparse
from typing import Any

from pydantic import ValidationError

from analyzers.base import request_error
from analyzers.checkpoints import Access
from analyzers.command_line import Parser, add_outputs, check_outputs, with_progress, write
from analyzers.exit_feedback.request import METHODS, ExitRequest
from analyzers.language_models.bounded_process import prepare

# Options whose name on the command line is that of the field.
_FIELDS = (
    "rank", "k", "anchors", "buckets", "residual", "seeds", "layers", "training_steps", "data", "samples", "sequence_length", "tokens",
    "dtype", "device", "seed",
)  # fmt: skip


def add_options(parser: Parser) -> None:
    """What the command takes. An option that is not given is left to the request's default."""
    parser.description = "How close does a cheap gradient at the LM head, made without backpropagation, come to the exact one?"

    def option(name: str, *names: str, **settings: Any) -> None:
        parser.add_argument(name, *names, default=None, **settings)

    parser.add_argument("model", metavar="MODEL", help="org/name, org/name@revision, sample:NAME, ./folder")
    option("--methods", metavar="NAMES", help=f"signals, separated by commas (default all: {','.join(METHODS)})")
    option("--rank", type=int, metavar="R", help="columns of random codes, and rank of the svd (default 128, at most half the width)")
    option("--k", type=int, metavar="K", help="rows of the vocabulary taken for themselves (default 16)")
    option("--anchors", type=int, metavar="M", help="hidden states that span (default 64, at most half the width)")
    option("--buckets", type=int, metavar="B", help="of the sketch of what the K rows leave (default 512)")
    option("--residual", "--lambda", type=float, metavar="X", help="weight of the random-code residual of parallel_... (default 1)")
    option("--seeds", type=int, metavar="N", help="draws of random codes that the spread is taken over (default 8)")
    parser.add_argument("--no-sweep", dest="sweep", action="store_false", help="no other ranks, ks and anchors: faster")
    option("--layers", metavar="LAYERS", help="of the logit lens: auto (default, up to six), all, final, or 0,4-6")
    option("--training-steps", type=int, metavar="N", help="of a small trunk under each signal (default 80; 0: none)")
    option("--data", metavar="DATA", help="builtin (default), FILE.jsonl, or the id of a dataset on the Hub")
    option("--samples", type=int, metavar="N", help="how many samples (default 32)")
    option("--sequence-length", type=int, metavar="TOKENS", help="cut samples off after so many tokens (default 256)")
    option("--tokens", type=int, metavar="N", help="measure at most so many tokens of answers (default 512)")
    option("--dtype", choices=("auto", "float32", "bfloat16", "float16"), help="run the model in this (auto: float32 on the CPU)")
    option("--device", choices=("auto", "cpu", "cuda"), help="where to run (default: a GPU if there is one)")
    option("--seed", type=int, help="seed of codes, anchors, drawn tokens and the trunk (default 0)")
    add_outputs(parser)


def run(options: argparse.Namespace) -> int:
    """Measure, and write the one report."""
    prepare()
    asked = {name: getattr(options, name) for name in _FIELDS if getattr(options, name) is not None}
    if options.methods is not None:
        asked["methods"] = tuple(name.strip() for name in options.methods.split(","))
    try:
        request = ExitRequest(model=options.model, sweep=options.sweep, **asked)
    except ValidationError as error:
        raise request_error(error) from None
    check_outputs(options)
    from analyzers.exit_feedback import ExitReport, analyze, text

    items = with_progress(analyze(request, Access(token=True, local=True)), request.model)
    reports = [item for item in items if isinstance(item, ExitReport)]
    write(options, reports, False, lambda: text.one(reports[0]))
    return 0
