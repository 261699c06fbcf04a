"""The command ``mantissa dtype MODEL [MODEL ...]``."""

import argparse
from typing import get_args

from analyzers.checkpoints import Access
from analyzers.core.command_line import Parser, add_fields, add_outputs, check_outputs, request_of, with_progress, write
from analyzers.core.errors import MantissaError
from analyzers.core.terminal import print_line
from analyzers.dtype.report import DtypeReport, DtypeRequest
from analyzers.dtype.rows import QuantizationFormat


def add_options(parser: Parser) -> None:
    """Add the command's options."""
    parser.describe(
        "Was this checkpoint trained in fp16, bf16 or fp32? What formats have its weights passed through? Will it fit fp16?",
        ("Qwen/Qwen3-0.6B Qwen/Qwen3-1.7B", "one line per model, from a sample of 64 MB each"),
        ("./checkpoint --exact --html report.html", "all weights of a local folder, with the plots as a page"),
    )
    add_fields(parser, DtypeRequest, model={"nargs": "+"})
    add_outputs(parser)


def run(options: argparse.Namespace) -> int:
    """Inspect every model and write the reports. Returns 2 if a model could not be read, after the answers for the others."""
    from analyzers.dtype.analyze import analyze

    if options.quantize == "all":
        options.quantize = ",".join(get_args(QuantizationFormat))
    requests = [request_of(DtypeRequest, options, model=model) for model in options.model]
    check_outputs(options)
    reports: list[DtypeReport] = []
    failed = False
    for request in requests:
        try:
            for item in with_progress(analyze(request, Access(token=True, local=True)), request.model):
                if isinstance(item, DtypeReport):
                    reports.append(item)
        except MantissaError as error:
            failed = True
            where = f"{request.model[:80]}: " if len(requests) > 1 else ""
            print_line(f"error: {where}{error}")
    if reports:
        write(options, reports, len(requests) > 1)
    return 2 if failed else 0
