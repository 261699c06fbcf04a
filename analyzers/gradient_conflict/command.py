"""``python -m analyzers conflict MODEL``."""

import argparse
from typing import Any

from pydantic import ValidationError

from analyzers.base import request_error
from analyzers.checkpoints import Access
from analyzers.command_line import Parser, add_outputs, check_outputs, with_progress, write
from analyzers.errors import InvalidRequest
from analyzers.language_models.bounded_process import prepare

# Options whose name on the command line is that of the field.
_FIELDS = (
    "data", "samples", "choice", "template", "max_length", "loss", "gamma", "floor", "epsilon", "unit", "ffn", "topk", "topk_share",
    "topk_layers", "select", "attention", "checkpointing", "dtype", "device", "offload", "seed",
)  # fmt: skip


def add_options(parser: Parser) -> None:
    """Add the command's options. An option that is not given keeps the request's default."""
    parser.describe(
        "Do training samples pull the same neuron in opposite directions? Does one of them dominate? What does a top-k FFN change?",
        ("HuggingFaceTB/SmolLM2-135M --data pairs.jsonl --samples 20", "20 random instruction-answer pairs of a file"),
        ("sample:tiny-bf16 --ffn topk --topk 0.125", "the same samples with a top-k FFN that keeps an eighth of the neurons"),
    )

    def option(name: str, **settings: Any) -> None:
        parser.add_argument(name, default=None, **settings)

    parser.add_argument("model", metavar="MODEL", help="org/name, org/name@revision, sample:NAME, ./folder")
    option("--data", metavar="DATA", help="builtin (default), FILE.jsonl, or the id of a dataset on the Hub")
    option("--samples", type=int, metavar="N", help="how many samples (default 50)")
    option("--choice", choices=("random", "first"), help="samples: a random choice by --seed among all rows (default), or the first rows")
    option(
        "--template",
        choices=("auto", "plain", "alpaca", "alpaca-input", "chat"),
        help="prompt template: plain; alpaca (Stanford Alpaca); alpaca-input, its form with an input for every sample; chat, the "
        "tokenizer's own; auto (default): chat if the tokenizer has a chat template, else plain",
    )
    option("--max-length", type=int, metavar="TOKENS", help="truncate samples to this many tokens (default 512)")
    option("--loss", choices=("mean", "sum"), help="loss of a sample over its answer tokens (default mean)")
    option("--gamma", type=float, metavar="COSINE", help="a pair conflicts where its cosine is below this (default 0)")
    option("--floor", type=float, metavar="X", help="exclude gradients with a norm below X times the layer's median norm (default 0)")
    option("--epsilon", type=float, metavar="NORM", help="exclude gradients whose norm is not above this (default 0)")
    option("--unit", choices=("ffn", "attention"), help="neurons of the FFN (default) or rows of attention projections")
    option("--ffn", choices=("original", "topk"), help="topk: compare a top-k FFN with the original, on the same samples")
    option("--topk", type=float, metavar="SHARE", help="share of the neurons that each token keeps (default 0.125)")
    option("--topk-share", type=float, metavar="SHARE", help="instead the smallest set covering this share of the sum of |score|")
    option("--topk-layers", metavar="LAYERS", help="last (default), all, N or A-B, counted from 0")
    option("--select", choices=("gate", "up", "abs-up", "product", "abs-product"), help="score that ranks neurons (default gate)")
    parser.add_argument("--no-weights", dest="weights", action="store_false", help="do not measure individual weights: faster")
    option("--attention", choices=("sdpa", "eager"), help="implementation of attention (default sdpa)")
    option(
        "--checkpointing",
        action="store_const",
        const=True,
        help="recompute activations: slower, less memory; automatic where memory is short",
    )
    option("--dtype", choices=("auto", "float32", "bfloat16", "float16"), help="run the model in this (auto: float32 on the CPU)")
    option("--device", choices=("auto", "cpu", "cuda"), help="where to run (default: a GPU if there is one)")
    option(
        "--offload",
        choices=("auto", "never"),
        help="auto (default): where memory is too small for the model, read its layers one at a time; never: refuse it",
    )
    option("--seed", type=int, help="seed of the choice of samples, and of their halves and batches (default 0)")
    add_outputs(parser)


def run(options: argparse.Namespace) -> int:
    """Measure, and write the one report."""
    prepare()
    from analyzers.gradient_conflict import TOPK_OPTIONS, ConflictReport, ConflictRequest, analyze, text

    asked = {name: getattr(options, name) for name in _FIELDS if getattr(options, name) is not None}
    idle = next((name for name in TOPK_OPTIONS if name in asked), None)
    if idle is not None and asked.get("ffn") != "topk":
        raise InvalidRequest(f"--{idle.replace('_', '-')} concerns a top-k FFN only: add --ffn topk.")
    try:
        request = ConflictRequest(model=options.model, weights=options.weights, **asked)
    except ValidationError as error:
        raise request_error(error) from None
    check_outputs(options)
    items = with_progress(analyze(request, Access(token=True, local=True)), request.model)
    reports = [item for item in items if isinstance(item, ConflictReport)]
    write(options, reports, False, lambda: text.one(reports[0]))
    return 0
