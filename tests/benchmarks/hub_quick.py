"""Measures quick mode on models too large to download, from the local Hub with 50 ms before each answer."""

from collections.abc import Iterator
from pathlib import Path

from tests.hub.process import HubProcess

from .child import Run, quantity, run
from .result import Result

RUNS = 3
DELAY = "0.05"  # seconds
PLAIN_BYTES = 4_000_000_000  # bytes of the naive download that are measured
PART = r"layers\.40\."  # tensors read in exact mode, since all would take as long as the download


def large_quick(folder: Path) -> Iterator[Result]:
    """Measure time, bytes, memory and verdict on 80 layers, 141 GB. Naive: a download at the throughput of its first 4 GB."""
    with HubProcess("--llama", "org/large=bf16", "--delay", DELAY) as hub:
        variables = hub.environ(folder)
        runs, traffic = _quick(hub, folder, "org/large")
        plain = run(["-m", "tests.benchmarks.naive_download", "stream", "org/large", "-", str(PLAIN_BYTES)], variables=variables)
        exact = run(["-m", "analyzers", "dtype", "org/large", "--exact", "--include", PART, "--json"], variables=variables)
    report = runs[0].json
    seconds, low = _seconds(runs)
    naive = report["checkpoint"]["bytes"] / (plain.json["bytes"] / plain.json["seconds"])
    name = f"quick, {report['checkpoint']['bytes'] / 1e9:.0f} GB, 50 ms"
    yield Result(name, f"{seconds:.2f} s (min {low:.2f} s)", f"{naive:.0f} s (extrapolated)", naive / seconds, "< 10 s", seconds < 10)
    nbytes = max(each["bytes"] for each in traffic)
    yield Result("  bytes sent", f"{nbytes / 1e6:.1f} MB", "", report["checkpoint"]["bytes"] / nbytes, "<= 70 MB", nbytes <= 70e6)
    yield Result("  range requests", f"{max(each['ranges'] for each in traffic):,}")
    yield _memory(runs)
    verdicts = {run.json["lineage"]["verdict"] for run in runs}
    expected = exact.json["lineage"]["verdict"]
    yield Result("  verdict", ", ".join(sorted(verdicts)), "", None, f"{expected} (exact, one layer)", verdicts == {expected} == {"native"})


def mixture_quick(folder: Path) -> Iterator[Result]:
    """Measure time, range requests, size of the report and memory on a mixture of experts of 90,619 tensors."""
    with HubProcess("--mixture", "org/mixture=bf16", "--delay", DELAY) as hub:
        runs, traffic = _quick(hub, folder, "org/mixture")
    seconds, low = _seconds(runs)
    tensors = runs[0].json["checkpoint"]["tensors"]
    yield Result(f"quick, {tensors:,} tensors, 50 ms", f"{seconds:.2f} s (min {low:.2f} s)", "", None, "< 60 s", seconds < 60)
    ranges = max(each["ranges"] for each in traffic)
    yield Result("  range requests", f"{ranges:,}", "", None, "<= 2,000", ranges <= 2000)
    yield Result("  bytes sent", f"{max(each['bytes'] for each in traffic) / 1e6:.1f} MB")
    size = max(len(run.output.encode()) for run in runs)
    yield Result("  report as JSON", f"{size / 1e6:.2f} MB", "", None, "< 5 MB", size < 5e6)
    yield _memory(runs)


def _quick(hub: HubProcess, folder: Path, name: str) -> tuple[list[Run], list[dict[str, int]]]:
    """Run quick mode repeatedly after a discarded run. Returns the runs, and the Hub's counts for each."""
    runs, traffic = [], []
    for number in range(RUNS + 1):
        before = hub.totals()
        done = run(["-m", "analyzers", "dtype", name, "--json"], variables=hub.environ(folder))
        after = hub.totals()
        if number:
            runs.append(done)
            traffic.append({key: after[key] - before[key] for key in after})
    return runs, traffic


def _seconds(runs: list[Run]) -> tuple[float, float]:
    """Return the median and the minimum of the seconds."""
    seconds = sorted(run.seconds for run in runs)
    return seconds[len(seconds) // 2], seconds[0]


def _memory(runs: list[Run]) -> Result:
    peak = max(run.peak_bytes for run in runs)
    return Result("  peak memory", quantity(peak / 1e6, "MB"), "", None, "< 500 MB", peak < 500e6)
