"""``python -m analyzers exit MODEL``."""

import argparse
from typing import Any

from pydantic import ValidationError

from analyzers.base import request_error
from analyzers.checkpoints import Access
from analyzers.command_line import Parser, add_outputs, check_outputs, with_progress, write
from analyzers.exit_feedback.request import ExitRequest
from analyzers.exit_feedback.signals import METHODS
from analyzers.language_models.bounded_process import prepare


def add_options(parser: Parser) -> None:
    """The options of the command. One that is not given is left to the request's default."""
    parser.describe(
        "How close is a cheap gradient at the LM head, computed without backpropagation, to the exact one?",
        ("HuggingFaceTB/SmolLM2-135M --methods parallel,span", "two signals on the built-in text"),
        ("sample:tiny-bf16 --no-sweep --training-steps 0 --json", "the measurement alone, as JSON"),
    )

    def option(name: str, *names: str, **settings: Any) -> None:
        parser.add_argument(name, *names, default=None, **settings)

    parser.add_argument("model", metavar="MODEL", help="org/name, org/name@revision, sample:NAME, ./folder")
    option("--methods", metavar="NAMES", help=f"signals, separated by commas (default all: {', '.join(METHODS)})")
    option("--rank", type=int, metavar="R", help="rank of random codes and svd (default 128, parallel_...: 32; at most half the width)")
    option("--rank-exact", type=int, metavar="R", help="of hybrid's rank, columns of the exact codes (default 32, at most a quarter)")
    option("--rank-tail", type=int, metavar="R", help="with --rank-exact: columns of hybrid's tail sketch; their sum is its rank")
    option("--k", type=int, metavar="K", help="top-k vocabulary rows of hybrid and true_rows (default 8)")
    option("--topk-by", choices=("value", "magnitude"), help="how hybrid ranks logit gradients (default value: positive ones first)")
    option("--alpha", type=float, metavar="X", help="scale of dense and hybrid (default 1)")
    option(
        "--residual", "--lambda", type=float, metavar="X", help="lambda, weight of the codes orthogonal to h in parallel_... (default 0.1)"
    )
    option("--mass-threshold", type=float, metavar="P", help="probability mass of the tokens that parallel_topmass codes (default 0.95)")
    option("--anchors", type=int, metavar="M", help="anchor hidden states of span (default 64, at most half the width)")
    option("--seeds", type=int, metavar="N", help="draws of random codes for the spread over seeds (default 8)")
    parser.add_argument("--no-sweep", dest="sweep", action="store_false", help="skip other ranks, ks and anchors: faster")
    option("--layers", metavar="LAYERS", help="of the logit lens: auto (default, up to six), all, final, or 0,4-6")
    option("--training-steps", type=int, metavar="N", help="of a small transformer under each signal, 3 seeds each (default 30; 0: none)")
    option("--data", metavar="DATA", help="builtin (default), FILE.jsonl, or the id of a dataset on the Hub")
    option("--samples", type=int, metavar="N", help="number of samples (default 32)")
    option("--sequence-length", type=int, metavar="TOKENS", help="truncate samples to this many tokens (default 256)")
    option("--tokens", type=int, metavar="N", help="the most answer tokens to measure (default 512)")
    option("--dtype", choices=("auto", "float32", "bfloat16", "float16"), help="run the model in this type (auto: float32 on the CPU)")
    option("--device", choices=("auto", "cpu", "cuda"), help="where to run (default: a GPU if there is one)")
    option(
        "--offload",
        choices=("auto", "never"),
        help="auto (default): where memory is too small for the model, read its layers one at a time; never: refuse it",
    )
    option("--seed", type=int, help="seed of codes, anchors, the choice of tokens and the small transformer (default 0)")
    add_outputs(parser)


def run(options: argparse.Namespace) -> int:
    """Measure, and write the one report."""
    prepare()
    given = {name: value for name in ExitRequest.model_fields if (value := getattr(options, name, None)) is not None}
    if options.methods is not None:
        given["methods"] = tuple(name.strip() for name in options.methods.split(","))
    try:
        request = ExitRequest(**given)
    except ValidationError as error:
        raise request_error(error) from None
    check_outputs(options)
    from analyzers.exit_feedback import ExitReport, analyze, text

    items = with_progress(analyze(request, Access(token=True, local=True)), request.model)
    reports = [item for item in items if isinstance(item, ExitReport)]
    write(options, reports, False, lambda: text.one(reports[0]))
    return 0
