"""The command ``mantissa scan LIST [--out DIR]``."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from analyzers.core.command_line import SAMPLING, Parser, add_fields, given_options, print_json, print_lines
from analyzers.core.errors import InvalidRequest
from analyzers.core.formatting import duration
from analyzers.core.request import WeightsRequest, request_error
from analyzers.core.terminal import plural

if TYPE_CHECKING:
    from analyzers.scan.run import Summary


def add_options(parser: Parser) -> None:
    """Add the command's options."""
    parser.describe(
        "Run dtype on every model of a list and write two Parquet files. An interrupted scan continues where it stopped.",
        ("models.txt --out scan", "the models of a file, one per line; the same command continues it"),
        ("models.txt --dask local", "on all cores of this machine, one process for each"),
    )
    parser.add_argument("list", metavar="LIST", help="a file with one model per line, or - for standard input")
    parser.add_argument(
        "--out", default="scan", metavar="DIR", help="where to write (default ./scan), and where to continue an interrupted scan"
    )
    add_fields(parser, WeightsRequest, *SAMPLING)
    parser.add_argument("--jobs", type=int, metavar="N", help="models that this process works on at once (default 4, with --exact 1)")
    parser.add_argument("--dask", metavar="ADDRESS", help="use a dask.distributed cluster: the scheduler's address, or local")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where to count (default: the CPU)")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


def run(options: argparse.Namespace) -> int:
    """Scan the list and print the summary. Returns 0. Raises MantissaError."""
    import pyarrow as pyarrow  # Fails now if the library is missing, rather than after the scan when the tables are written.

    from analyzers.scan.request import ScanRequest
    from analyzers.scan.run import scan

    if not options.out:
        raise InvalidRequest("--out is empty: name the folder to write to.")
    try:
        request = ScanRequest.of(options.list, given_options(options, SAMPLING), options.device, options.jobs, options.dask)
    except ValidationError as error:
        raise request_error(error) from None
    try:
        summary = scan(request, Path(options.out))
    except KeyboardInterrupt as error:
        error.args = ("what was finished is kept; run the same command again to continue",)
        raise
    if summary is not None and sys.stdout is not None:
        subject = "The scan is finished, but its summary"
        if options.json:
            print_json(json.dumps(asdict(summary), indent=2), subject)
        else:
            print_lines(_text(summary), subject)
    return 0


def _text(summary: "Summary") -> list[str]:
    lines = []
    if summary.scanned == 0:
        lines.append(f"Nothing to do: {plural(summary.done_before, 'checkpoint')} done before.")
    else:
        before = f", {summary.done_before:,} were done before" if summary.done_before else ""
        by = f" by {summary.processes:,} processes" if summary.processes > 1 else ""
        lines.append(f"{plural(summary.scanned, 'checkpoint')} scanned in {duration(summary.seconds)}{by}{before}.")
    failed = sum(summary.errors.values())
    kinds = f" ({', '.join(f'{number:,} {kind}' for kind, number in summary.errors.items())})" if failed else ""
    lines.append(f"{summary.checkpoints:,} in the list: {summary.ok:,} ok, {plural(failed, 'error')}{kinds}.")
    if summary.transient:
        lines.append(f"{plural(summary.transient, 'error')} may be transient: run the same command again to retry.")
    return [*lines, *summary.tables]
