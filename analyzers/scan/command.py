"""``python -m analyzers scan LIST --out DIR``: what it prints, and its exit status."""

import argparse
import json
import os
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from analyzers.base import request_error
from analyzers.scan.request import ScanRequest
from analyzers.scan.run import Summary, scan


def run_command(options: argparse.Namespace, budget: int | None) -> int:
    """Scan as the command line says; returns 0, or 130 where it was interrupted. Raises MantissaError.

    budget: in bytes; the rest of ``options`` is as the parser left it.
    """
    asked: dict[str, Any] = {"mode": "exact"} if options.exact else {}
    if budget is not None:
        asked["budget"] = budget
    asked |= {name: getattr(options, name) for name in ("include", "exclude", "seed")}
    try:
        request = ScanRequest.of(options.list, asked, limit=options.limit, device=options.device, jobs=options.jobs)
    except ValidationError as error:
        raise request_error(error) from None
    if _accelerate_started_one():
        print(
            "note: accelerate started a single process. Without several GPUs it needs --multi_gpu to start more (no GPU is used then "
            "either), or use torchrun.",
            file=sys.stderr,
        )
    try:
        summary = scan(request, Path(options.out))
    except KeyboardInterrupt:
        print("interrupted: what was finished is kept; run the same command again to go on", file=sys.stderr, flush=True)
        if any(thread.name.startswith("scan-") for thread in threading.enumerate()):
            os._exit(130)  # they wait for the network, and all that matters is on the disk
        return 130
    if summary is not None:
        print(json.dumps(asdict(summary), indent=2) if options.json else _text(summary), flush=True)
    return 0


def _accelerate_started_one() -> bool:
    """Whether several processes were asked of accelerate and it started one without a word."""
    return "ACCELERATE_USE_CPU" in os.environ and "MASTER_PORT" in os.environ and "RANK" not in os.environ


def _text(summary: Summary) -> str:
    lines = []
    if summary.scanned == 0:
        kept = "" if summary.written else ", and the tables are as they were"
        lines.append(f"Nothing to do: {_checkpoints(summary.done_before)} done before{kept}.")
    else:
        before = f", {summary.done_before:,} were done before" if summary.done_before else ""
        by = f" by {summary.processes:,} processes" if summary.processes > 1 else ""
        lines.append(f"{_checkpoints(summary.scanned)} scanned in {summary.seconds:,.1f} s{by}{before}.")
    failed = sum(summary.errors.values())
    kinds = f" ({', '.join(f'{number:,} {kind}' for kind, number in summary.errors.items())})" if failed else ""
    lines.append(f"{summary.checkpoints:,} in the list: {summary.ok:,} ok, {failed:,} error{'' if failed == 1 else 's'}{kinds}.")
    if summary.passing:
        lines.append(f"Of the errors {summary.passing:,} may pass: run the same command again to try those.")
    return "\n".join([*lines, *summary.tables])


def _checkpoints(number: int) -> str:
    return f"{number:,} checkpoint{'' if number == 1 else 's'}"
