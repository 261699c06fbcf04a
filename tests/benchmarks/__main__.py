"""Runs benchmarks and prints one table: ``python -m tests.benchmarks [NAME ...]``. Needs about 15 GB of disk temporarily."""

import argparse
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from .adapters import adapters_exact, adapters_quick
from .comparison import compare_exact, compare_quick
from .conflict import conflict
from .gpu import gpu
from .hub_quick import large_quick, mixture_quick
from .layouts import layouts
from .local_exact import local_exact
from .monitor import monitor
from .offload import offload
from .precision import precision
from .result import Result, table
from .shrink import shrink
from .sparsity import sparsity_exact, sparsity_quick

BENCHMARKS: dict[str, Callable[[Path], Iterator[Result]]] = {
    "local": local_exact,
    "large": large_quick,
    "mixture": mixture_quick,
    "sparsity": sparsity_exact,
    "sparsity-quick": sparsity_quick,
    "compare": compare_exact,
    "compare-quick": compare_quick,
    "adapters": adapters_exact,
    "adapters-quick": adapters_quick,
    "layouts": layouts,
    "shrink": shrink,
    "conflict": conflict,
    "precision": precision,
    "offload": offload,
    "monitor": monitor,
    "gpu": gpu,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the named benchmarks. Returns the exit status: 1 if a benchmark failed, or with --strict missed a target."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description="Speed and memory beside the naive way.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; by default all")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a target is missed: for a machine that does nothing else")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}; choose from {', '.join(BENCHMARKS)}")
    print(machine(), flush=True)
    results: list[Result] = []
    failed = False
    try:
        for name in dict.fromkeys(options.names or BENCHMARKS):
            start = time.perf_counter()
            with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
                try:
                    results += BENCHMARKS[name](Path(folder))
                except RuntimeError as error:
                    failed = True
                    results.append(Result(f"{name}: failed", "", met=False))
                    print(f"{name}: {error}", file=sys.stderr)
            print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    finally:  # also print measurements made before an interruption
        print(table(results))
    print("\nTimes: median of several processes (smallest in brackets). ratio: naive / ours. Memory: largest of all runs.")
    return int(failed or (options.strict and any(result.met is False for result in results)))


def machine() -> str:
    """Describe the machine and its load in one line."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    load = os.getloadavg()[0]
    return f"{model}, {cores} cores, {memory:.0f} GB, Python {platform.python_version()}, load {load:.1f} before the start\n"


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # exit normally, so that the temporary folder of many gigabytes is removed
    sys.exit(main())
