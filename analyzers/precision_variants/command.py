"""``python -m analyzers precision MODEL``."""

import argparse
from typing import Any

from pydantic import ValidationError

from analyzers.base import request_error
from analyzers.checkpoints import Access
from analyzers.command_line import Parser, add_outputs, check_outputs, with_progress, write
from analyzers.errors import InvalidRequest
from analyzers.language_models.bounded_process import prepare
from analyzers.precision_variants.variants import DEFAULT, PRESETS

# Options whose name on the command line is that of the field.
_FIELDS = ("data", "sequences", "sequence_length", "random_init", "loss", "pre_rounded", "inside", "attention", "device", "seed")


def add_options(parser: Parser) -> None:
    """What the command takes. An option that is not given is left to the request's default."""
    parser.description = "How does rounding error grow through a model, forward and backward, for each way of running it?"

    def option(name: str, **settings: Any) -> None:
        parser.add_argument(name, default=None, **settings)

    parser.add_argument("model", metavar="MODEL", help="org/name, org/name@revision, sample:NAME, ./folder")
    option("--variants", metavar="NAMES", help=f"presets, separated by commas, of {', '.join(PRESETS)} (default {','.join(DEFAULT)})")
    parser.add_argument(
        "--variant",
        metavar="DEFINITION",
        action="append",
        default=[],
        help="one of your own, 'name: key=value,...', with the keys dtype (fp32, tf32, bf16, fp16), fp32 (parts joined by +: residual, "
        "lm_head, norms, router, softmax), autocast (true, false), attention (eager, sdpa, flash), reductions (full, reduced), weights "
        "(int8, fp8, mxfp4); can be given several times",
    )
    option(
        "--data",
        metavar="DATA",
        help="builtin (default), random (tokens drawn evenly), FILE.jsonl, FILE.txt, or the id of a dataset on the Hub",
    )
    option("--sequences", type=int, metavar="N", help="how many rows of tokens (default 2)")
    option("--sequence-length", type=int, metavar="TOKENS", help="tokens of each (default 512)")
    option("--random-init", action="store_const", const=True, help="fresh random weights instead of the checkpoint's")
    option("--loss", choices=("ce", "gspo"), help="cross-entropy (default) or a sequence-level policy gradient")
    option("--advantages", metavar="A,A,...", help="of each sequence, for gspo (default: drawn from a normal distribution)")
    option("--pre-rounded", action="store_const", const=True, help="round the reference's weights as each variant does")
    option("--inside", action="store_const", const=True, help="also compare what modules within the layers give")
    option("--attention", choices=("sdpa", "eager"), help="implementation in the reference (default sdpa)")
    option("--device", choices=("auto", "cpu", "cuda"), help="where to run (default: a GPU if there is one)")
    option("--seed", type=int, help="seed of random weights, tokens and advantages (default 0)")
    add_outputs(parser)


def run(options: argparse.Namespace) -> int:
    """Measure, and write the one report."""
    prepare()
    from analyzers.precision_variants import PrecisionReport, PrecisionRequest, analyze, text

    asked = {name: getattr(options, name) for name in _FIELDS if getattr(options, name) is not None}
    if options.advantages is not None:
        asked["advantages"] = _numbers(options.advantages)
    if options.variants is not None or options.variant:
        named = [name.strip() for name in (options.variants or "").split(",")]
        asked["variants"] = tuple(name for name in named if name) + tuple(options.variant)
    try:
        request = PrecisionRequest(model=options.model, **asked)
    except ValidationError as error:
        raise request_error(error) from None
    check_outputs(options)
    items = with_progress(analyze(request, Access(token=True, local=True)), request.model)
    reports = [item for item in items if isinstance(item, PrecisionReport)]
    write(options, reports, False, lambda: text.one(reports[0]))
    return 0


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InvalidRequest("Advantages are numbers separated by commas, for example 1,-0.5,0.25.") from None
