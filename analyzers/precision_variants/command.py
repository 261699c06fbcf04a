"""``python -m analyzers precision MODEL``."""

import argparse
from typing import Any, get_args

from pydantic import ValidationError

from analyzers.base import request_error
from analyzers.checkpoints import Access, quoted
from analyzers.command_line import Parser, add_outputs, check_outputs, with_progress, write
from analyzers.errors import InvalidRequest
from analyzers.language_models.bounded_process import prepare
from analyzers.precision_variants.request import CLIP, Loss, parse_old_logprobs
from analyzers.precision_variants.variants import DEFAULT, PRESETS

# Options named like their field of the request.
_FIELDS = (
    "data", "sequences", "sequence_length", "random_init", "loss", "clip_low", "clip_high", "pre_rounded", "inside", "attention", "device",
    "offload", "seed",
)  # fmt: skip


def add_options(parser: Parser) -> None:
    """The options. One that is not given keeps the request's default."""
    parser.describe(
        "How does rounding error grow through a model, forward and backward, for each way of running it?",
        ("HuggingFaceTB/SmolLM2-135M --variants bf16,bf16_fp32_residual", "two presets against the fp32 reference"),
        ("sample:tiny-bf16 --variant 'mine: dtype=bf16,fp32=norms+lm_head'", "your own variant"),
    )

    def option(name: str, **settings: Any) -> None:
        parser.add_argument(name, default=None, **settings)

    parser.add_argument("model", metavar="MODEL", help="org/name, org/name@revision, sample:NAME, ./folder")
    option("--variants", metavar="NAMES", help=f"presets, separated by commas: {', '.join(PRESETS)} (default {', '.join(DEFAULT)})")
    parser.add_argument(
        "--variant",
        metavar="DEFINITION",
        action="append",
        default=[],
        help="your own variant, 'name: key=value,...', with the keys dtype (fp32, tf32, bf16, fp16), fp32 (parts joined by +: residual, "
        "lm_head, norms, router, softmax), autocast (true, false), attention (eager, sdpa, flash), reductions (full, reduced), weights "
        "(int8, fp8, mxfp4); may be repeated",
    )
    option(
        "--data",
        metavar="DATA",
        help="builtin (default), random (tokens drawn uniformly), FILE.jsonl, FILE.txt, or the id of a dataset on the Hub",
    )
    option("--sequences", type=int, metavar="N", help="number of sequences (default 2)")
    option("--sequence-length", type=int, metavar="TOKENS", help="tokens per sequence (default 512)")
    option("--random-init", action="store_const", const=True, help="random weights instead of the checkpoint's")
    option("--loss", choices=get_args(Loss), help="cross-entropy (default), or a policy gradient: gspo (per sequence) or grpo (per token)")
    option("--advantages", metavar="A,A,...", help="for gspo and grpo, one per sequence (default: drawn from a normal distribution)")
    option(
        "--old-logprobs",
        metavar="FILE",
        help="for gspo and grpo, log-probabilities under the sampling policy: JSON lines, per sequence a list with one number for each "
        "token but the first (default: those of the reference)",
    )
    defaults = ", ".join(f"{loss} {{:g}}" for loss in CLIP)
    low, high = (defaults.format(*bounds) for bounds in zip(*CLIP.values(), strict=True))
    option("--clip-low", type=float, metavar="X", help=f"clip ratios below 1 - X (default {low}; 1 clips nothing)")
    option("--clip-high", type=float, metavar="X", help=f"clip ratios above 1 + X (default {high}; 1e6 clips nothing)")
    option("--pre-rounded", action="store_const", const=True, help="round the reference's weights as each variant does")
    option("--inside", action="store_const", const=True, help="also compare the outputs of the modules within each layer")
    option("--attention", choices=("sdpa", "eager"), help="implementation of the reference (default sdpa)")
    option("--device", choices=("auto", "cpu", "cuda"), help="where to run (default: a GPU if there is one)")
    option(
        "--offload",
        choices=("auto", "never"),
        help="auto (default): where memory is too small for the model, read its layers one at a time; never: refuse it",
    )
    option("--seed", type=int, help="seed for random weights, tokens and advantages (default 0)")
    add_outputs(parser, tensors=True)


def run(options: argparse.Namespace) -> int:
    """Measure and write the report."""
    prepare()
    from analyzers.precision_variants import PrecisionReport, PrecisionRequest, analyze, text
    from analyzers.precision_variants.inputs import read_text

    asked = {name: getattr(options, name) for name in _FIELDS if getattr(options, name) is not None}
    if options.advantages is not None:
        asked["advantages"] = _numbers(options.advantages)
    if options.old_logprobs is not None:
        asked["old_logprobs"] = parse_old_logprobs(read_text(options.old_logprobs), quoted(options.old_logprobs))
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
    write(options, reports, False, lambda: text.one(reports[0]), text.tensors)
    return 0


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InvalidRequest("Advantages are numbers separated by commas, for example 1,-0.5,0.25.") from None
