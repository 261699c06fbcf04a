"""The command ``mantissa precision MODEL``."""

import argparse
from collections.abc import Iterator
from typing import Any

from analyzers.checkpoints import Access
from analyzers.core.command_line import Parser, add_fields, add_outputs, request_of, write_one
from analyzers.precision.request import PrecisionRequest
from analyzers.precision.variants import DEFAULT, PRESETS


def add_options(parser: Parser) -> None:
    """Add the command's options. An option that is not given keeps the request's default."""
    parser.describe(
        "How does rounding error grow through a model, forward and backward, for each way of running it?",
        ("HuggingFaceTB/SmolLM2-135M --variants bf16,bf16_fp32_residual", "two presets against the fp32 reference"),
        ("sample:tiny-bf16 --variant 'mine: dtype=bf16,fp32=norms+lm_head'", "your own variant"),
    )
    presets = f"presets, separated by commas: {', '.join(PRESETS)} (default {', '.join(DEFAULT)})"
    add_fields(parser, PrecisionRequest, variants={"help": presets})
    parser.add_argument(
        "--variant",
        metavar="DEFINITION",
        action="append",
        default=[],
        help="your own variant, 'name: key=value,...', with the keys dtype (fp32, tf32, bf16, fp16), fp32 (parts joined by +: residual, "
        "lm_head, norms, router, softmax), autocast (true, false), attention (eager, sdpa, flash), reductions (full, reduced), weights "
        "(int8, fp8, fp8_tensor, mxfp4); may be repeated",
    )
    add_outputs(parser)


def run(options: argparse.Namespace) -> int:
    """Run the analysis and write its report. Returns the exit status."""
    given: dict[str, Any] = {}
    if options.logprobs is not None:
        from analyzers.precision.logprobs import read_logprobs

        given["logprobs"] = read_logprobs(options.logprobs)
    if options.variants is not None or options.variant:
        named = [name.strip() for name in (options.variants or "").split(",")]
        given["variants"] = tuple(name for name in named if name) + tuple(options.variant)
    request = request_of(PrecisionRequest, options, **given)
    return write_one(options, _analysis(request), request.model)


def _analysis(request: PrecisionRequest) -> Iterator[Any]:
    """Yield the items of the analysis. It is imported on first use, which takes seconds: the progress bar is already shown then."""
    from analyzers.precision import analyze

    yield from analyze(request, Access(token=True, local=True))
