"""Runs benchmarks and prints one table: ``python -m benchmarks [NAME ...]``. Needs about 12 GB of disk temporarily."""

import argparse
import os
import platform
import signal
import sys
import tempfile
from collections.abc import Iterable, Sequence
from functools import cache, partial
from itertools import groupby
from pathlib import Path

from .inputs import SIZES
from .measure import HEADINGS, Result, measure, measure_start
from .rows import ROWS

RUNS = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the named benchmarks. Returns the exit status: 1 if one failed or printed what the naive way does not, or with --strict
    missed a target.
    """
    names = [row.name for row in ROWS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Speed and memory beside the naive way, on the same inputs.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}; by default all that the device can do")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a target is missed: for a machine that does nothing else")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where rows run that have a choice; cuda: only these")
    parser.add_argument("--small", action="store_true", help="try the programs on small inputs, and judge no target")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"measured runs of each command, after a discarded one (default {RUNS})")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in names]:
        parser.error(f"there is no benchmark {unknown[0]!r}; choose from {', '.join(names)}")
    chosen = [row for row in ROWS if row.name in (options.names or names) and (options.device == "cpu" or "{device}" in row.ours)]
    sizes = SIZES["small" if options.small else options.device]
    start = None if options.small else cache(partial(measure_start, options.runs))
    print(machine(), flush=True)
    results: list[Result] = []
    try:
        for set_up, rows in groupby(chosen, key=lambda row: row.inputs):
            with tempfile.TemporaryDirectory(prefix="benchmark-") as folder, set_up(Path(folder), sizes) as inputs:
                for row in rows:
                    try:
                        result = measure(row, inputs, options.device, Path(folder), options.runs, start)
                    except RuntimeError as error:
                        result = Result((row.name, "failed", *[""] * (len(HEADINGS) - 2)), str(error))
                    results.append(result)
                    print(*filter(None, (*result.cells, result.wrong)), file=sys.stderr, flush=True)
    finally:  # also print measurements made before an interruption
        print(table(results))
    print(f"\nMedians of {options.runs} runs; of memory the largest. ratio: naive seconds / ours.")
    return int(any(result.wrong or (options.strict and result.missed) for result in results))


def table(results: Iterable[Result]) -> str:
    """Format all results in columns."""
    lines = [HEADINGS, *(result.cells for result in results)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADINGS))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines)


def machine() -> str:
    """Describe the machine and its load in one line."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    load = os.getloadavg()[0]
    return f"{model}, {cores} cores, {memory:.0f} GB, Python {platform.python_version()}, load {load:.1f} before the start\n"


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # exit normally, so that the temporary folder of many gigabytes is removed
    sys.exit(main())
