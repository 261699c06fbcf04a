"""The command ``mantissa shrink MODEL --out DIR``."""

import argparse
from typing import get_args

from analyzers.checkpoints import Access
from analyzers.command_line import Parser, print_json, print_lines, with_progress
from analyzers.formatting import plural, share, size
from analyzers.shrink.plan import Target
from analyzers.shrink.report import ShrinkReport


def add_options(parser: Parser) -> None:
    """Add the command's options."""
    parser.describe(
        "Store a checkpoint in fewer bytes without changing a value: each fp32 or fp64 tensor in a narrower format that holds its values.",
        ("./checkpoint --out ./smaller", "the result is read back and compared before the folder gets its name"),
        ("./dequantized --out ./codes --to grid", "as codes and scales of int4, int8, fp8 or MXFP4, where these restore every value"),
    )
    parser.add_argument("model", metavar="MODEL", help="org/name, org/name@revision, sample:NAME, ./folder or /file")
    parser.add_argument("--out", required=True, metavar="DIR", help="the folder to write, which must not exist")
    parser.add_argument(
        "--to",
        choices=get_args(Target),
        default="auto",
        help="consider only this format (default: bf16 and fp16, and fp32 for fp64); grid: codes and scales, as a quantizer stores them",
    )
    request = "then open a pull request on the model's repository, with your own token"
    parser.add_argument("--pull-request", action="store_true", help=request)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(options: argparse.Namespace) -> int:
    """Shrink a checkpoint, open a pull request if requested, and print the report. Returns 0. Raises MantissaError."""
    from analyzers.shrink.run import shrink

    request = options.pull_request_on(options.model) if options.pull_request else None
    items = with_progress(shrink(options.model, options.out, options.to, Access(token=True, local=True)), options.model)
    (report,) = (item for item in items if isinstance(item, ShrinkReport))
    if request is not None and report.written:
        *_, address = with_progress(request.open(report), options.model)
        report = report.model_copy(update={"pull_request": address})
    if options.json:
        print_json(report.to_json(), "The report")
    else:
        print_lines(_text(report), "The report")
    return 0


def _text(report: ShrinkReport) -> list[str]:
    if not report.written:
        return list(report.notes)
    kinds: dict[tuple[str, str | None], int] = {}
    for tensor in report.tensors:
        kinds[tensor.from_, tensor.to] = kinds.get((tensor.from_, tensor.to), 0) + 1
    saved = report.bytes_before - report.bytes_after
    lines = [
        f"{report.out}: {size(report.bytes_after)}, {size(saved)} less than before ({share(saved / report.bytes_before)}). "
        "Read back and compared: no value has changed."
    ]
    for (dtype, to), number in kinds.items():
        left_out = "left out: a copy of another" if number == 1 else "left out: copies of others"
        became = "as before" if to == dtype else f"now {to}" if to else left_out
        lines.append(f"  {plural(number, 'tensor')} of {dtype}, {became}")
    if report.config_dtype:
        lines.append(f"  config.json: dtype {report.config_dtype}")
    if report.pull_request:
        lines.append(f"  pull request: {report.pull_request}")
    return [*lines, *report.notes]
