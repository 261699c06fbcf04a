"""``python -m analyzers scan LIST [--out DIR]``: what it prints, and its exit status."""

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from analyzers import limits
from analyzers.base import request_error
from analyzers.command_line import Parser
from analyzers.errors import InvalidRequest
from analyzers.formatting import parse_bytes
from analyzers.terminal import plural

if TYPE_CHECKING:
    from analyzers.scan.run import Summary


def add_options(parser: Parser) -> None:
    """What the command takes."""
    parser.description = "Run dtype on every model of a list and write two Parquet files. An interrupted scan continues where it stopped."
    parser.add_argument("list", metavar="LIST", help="a file with one model per line, - for standard input, search:TEXT or org:NAME")
    parser.add_argument(
        "--out", default="scan", metavar="DIR", help="where to write (default ./scan), and where to continue an interrupted scan"
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--exact", action="store_true", help="read everything instead of a sample")
    how.add_argument("--budget", metavar="SIZE", help=f"bytes of weights to sample (default {limits.DEFAULT_BUDGET_BYTES // 10**6}MB)")
    parser.add_argument("--include", metavar="RE", help="only tensors whose name matches this regular expression")
    parser.add_argument("--exclude", metavar="RE", help="no tensors whose name matches this regular expression")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N of the list (default 200 for search: and org:)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the samples (default 0)")
    parser.add_argument("--jobs", type=int, metavar="N", help="models that this process works on at once (default 4, with --exact 1)")
    parser.add_argument("--dask", metavar="ADDRESS", help="use a dask.distributed cluster: the scheduler's address, or local")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where to count (default: the CPU)")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


def run(options: argparse.Namespace) -> int:
    """Scan as the command line says; returns 0, or 130 where it was interrupted. Raises MantissaError."""
    import pyarrow as pyarrow  # a library that is missing is said now, and not when the tables are written

    from analyzers.scan.request import ScanRequest
    from analyzers.scan.run import scan

    if not options.out:
        raise InvalidRequest("--out is empty: name the folder to write to.")
    asked: dict[str, Any] = {"mode": "exact"} if options.exact else {}
    if options.budget is not None:
        asked["budget"] = parse_bytes(options.budget)
    asked |= {name: getattr(options, name) for name in ("include", "exclude", "seed")}
    try:
        request = ScanRequest.of(options.list, asked, limit=options.limit, device=options.device, jobs=options.jobs, dask=options.dask)
    except ValidationError as error:
        raise request_error(error) from None
    try:
        summary = scan(request, Path(options.out))
    except KeyboardInterrupt:
        print("interrupted: what was finished is kept; run the same command again to continue", file=sys.stderr, flush=True)
        return 130
    if summary is not None:
        _print(json.dumps(asdict(summary), indent=2) if options.json else _text(summary))
    return 0


def _print(answer: str) -> None:
    try:
        print(answer, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the flush at exit does not complain
        reason = os.strerror(error.errno) if error.errno else "the system refuses it"
        raise InvalidRequest(f"The scan is finished, but its summary cannot be written to standard output ({reason}).") from None


def _text(summary: "Summary") -> str:
    lines = []
    if summary.scanned == 0:
        kept = "" if summary.written else ", and the tables are as they were"
        lines.append(f"Nothing to do: {plural(summary.done_before, 'checkpoint')} done before{kept}.")
    else:
        before = f", {summary.done_before:,} were done before" if summary.done_before else ""
        by = f" by {summary.processes:,} processes" if summary.processes > 1 else ""
        lines.append(f"{plural(summary.scanned, 'checkpoint')} scanned in {summary.seconds:,.1f} s{by}{before}.")
    failed = sum(summary.errors.values())
    kinds = f" ({', '.join(f'{number:,} {kind}' for kind, number in summary.errors.items())})" if failed else ""
    lines.append(f"{summary.checkpoints:,} in the list: {summary.ok:,} ok, {plural(failed, 'error')}{kinds}.")
    if summary.transient:
        lines.append(f"{plural(summary.transient, 'error')} may be transient: run the same command again to retry.")
    return "\n".join([*lines, *summary.tables])
