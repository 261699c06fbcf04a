"""Measures scans: 200 quick ones over the local Hub in one process, and exact ones of local files by one worker and by two."""

import json
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.hub.process import HubProcess

from .child import Run, quantity, run
from .model_files import make
from .result import Result

CHECKPOINTS = 200
DELAY = "0.05"  # seconds before each answer of the Hub
SAMPLE = Path(__file__).resolve().parents[2] / "analyzers" / "language_models" / "samples" / "tiny-bf16"

# Counts patterns in memory for two seconds, and prints the number per second.
_COUNTING = """
import time
import numpy
from analyzers.numerics.count_kernels import count_codes
codes = (numpy.random.default_rng(0).normal(0, 0.02, 1 << 20).astype(numpy.float32).view(numpy.uint32) >> 16).astype(numpy.uint16)
table = numpy.zeros(1 << 16, dtype=numpy.int64)
count_codes(codes, table)
counted, start = 0, time.perf_counter()
while time.perf_counter() - start < 2:
    count_codes(codes, table)
    counted += codes.size
print(counted / (time.perf_counter() - start))
"""

# Exact scans of local files: number of checkpoints, their layers (1.3 GB each), and number of links to each.
LOCAL, LAYERS, TIMES = 6, 12, 12
TIMES_FASTER = 1.7


def scan_quick(folder: Path) -> Iterator[Result]:
    """Measure 200 small models, each resolved, opened and sampled by range."""
    models = [argument for number in range(CHECKPOINTS) for argument in ("--folder", f"org/model-{number:03}={SAMPLE}")]
    with HubProcess("--delay", DELAY, *models) as hub:
        variables = hub.environ(folder / "home")
        done = run(["-m", "analyzers", "scan", "org:org", "--out", str(folder / "quick"), "--json"], variables=variables)
        requests = hub.totals()["requests"]
    ok = done.json["ok"] == CHECKPOINTS
    limit = 180
    yield Result(
        f"scan, {CHECKPOINTS} quick, 50 ms, 1 process", quantity(done.seconds, "s"), "", None, f"< {limit} s", done.seconds < limit and ok
    )
    yield Result("  requests", f"{requests:,}")
    yield Result("  CPU", quantity(done.cpu_seconds, "s"))
    yield Result("  peak memory", quantity(done.peak_bytes / 1e6, "MB"), "", None, "< 500 MB", done.peak_bytes < 500e6)


def scan_exact(folder: Path) -> Iterator[Result]:
    """Measure one dask worker on one core and two on two cores, as another machine would add, and one process on both cores."""
    made = [make(folder / f"model-{number}", LAYERS) for number in range(LOCAL)]
    models = [*made, *(_linked(model, f"{model.name}-{copy}") for copy in range(1, TIMES) for model in made)]
    listed = folder / "list"
    listed.write_text("".join(f"{model}\n" for model in models))
    nbytes = sum(path.stat().st_size for model in models for path in model.iterdir())
    _scan(folder, listed, "warm")
    with _cores(1):
        one = _scan(folder, listed, "one worker", "--dask", "local")
    with _cores(2):
        process = _scan(folder, listed, "one process")
        two = _scan(folder, listed, "two workers", "--dask", "local")
    for model in models:
        shutil.rmtree(model)
    ratio = _seconds(one) / _seconds(two)
    yield Result(f"scan, exact, {len(models)} local, {nbytes / 1e9:.1f} GB, 1 worker, 1 core", quantity(_seconds(one), "s"))
    yield Result("  1 process, 2 cores", quantity(_seconds(process), "s"), "", _seconds(one) / _seconds(process))
    yield Result("  2 workers, 2 cores", quantity(_seconds(two), "s"), "", ratio, f">= {TIMES_FASTER}", ratio >= TIMES_FASTER)
    yield Result("  what the two cores give: counting in memory, 2 processes over 1", f"{_side_by_side():.2f}")
    same = len({(folder / each / "tensors.parquet").read_bytes() for each in ("one worker", "one process", "two workers")}) == 1
    yield Result("  tables", "the same" if same else "differ", "", None, "the same", same)


def _scan(folder: Path, listed: Path, name: str, *options: str) -> Run:
    return run(["-m", "analyzers", "scan", str(listed), "--out", str(folder / name), "--exact", "--json", *options])


def _linked(model: Path, name: str) -> Path:
    copy = model.with_name(name)
    copy.mkdir()
    for path in model.iterdir():
        (copy / path.name).hardlink_to(path)
    return copy


def _side_by_side() -> float:
    """Return the speedup of two processes that share and read nothing, since virtual cores may be halves of one core."""
    with ThreadPoolExecutor(2) as pool:
        (alone,) = pool.map(_counting, range(1))
        return sum(pool.map(_counting, range(2))) / alone


def _counting(core: int) -> float:
    return float(run(["-c", _COUNTING]).output)


def _seconds(done: Run) -> float:
    """Return the seconds of the scan, including the start of the cluster, excluding that of Python."""
    return float(json.loads(done.output)["seconds"])


@contextmanager
def _cores(count: int) -> Iterator[None]:
    """Confine this process and its children to ``count`` cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
