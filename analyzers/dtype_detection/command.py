"""``python -m analyzers dtype MODEL [MODEL ...]``."""

import argparse
import sys
from typing import get_args

from pydantic import ValidationError

from analyzers.base import request_error
from analyzers.checkpoints import Access
from analyzers.command_line import Parser, add_outputs, add_reading, check_outputs, reading, with_progress, write
from analyzers.errors import MantissaError
from analyzers.terminal import printable


def add_options(parser: Parser) -> None:
    """Add the command's options."""
    parser.describe(
        "Was this checkpoint trained in fp16, bf16 or fp32? What formats have its weights passed through? Will it fit fp16?",
        ("Qwen/Qwen3-0.6B Qwen/Qwen3-1.7B", "one line per model, from a sample of 64 MB each"),
        ("./checkpoint --exact --html report.html", "all weights of a local folder, with the plots as a page"),
    )
    parser.add_argument("models", nargs="+", metavar="MODEL", help="org/name, org/name@revision, sample:NAME, ./folder or /file")
    quantize = "also round the matrices to these formats and rank them by error: all, or some of fp8,fp8-block,int8,int4,mxfp4,nvfp4"
    parser.add_argument("--quantize", metavar="FORMATS", help=quantize)
    add_reading(parser)
    add_outputs(parser, tensors=True)


def run(options: argparse.Namespace) -> int:
    """Inspect every model; returns 2 where one could not be read, after the answers for the others."""
    from analyzers.dtype_detection import DtypeReport, DtypeRequest, analyze, text
    from analyzers.dtype_detection.report import QuantizationFormat

    try:
        asked = reading(options)
        if options.quantize is not None:
            asked["quantize"] = get_args(QuantizationFormat) if options.quantize == "all" else tuple(options.quantize.split(","))
        requests = [DtypeRequest(model=model, **asked) for model in options.models]
    except ValidationError as error:
        raise request_error(error) from None
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
            where = f"{printable(request.model[:80])}: " if len(requests) > 1 else ""
            print(f"error: {where}{printable(str(error))}", file=sys.stderr)
    if reports:
        several = len(requests) > 1
        write(options, reports, several, lambda: text.several(reports) if several else text.one(reports[0]), text.tensors)
    return 2 if failed else 0
