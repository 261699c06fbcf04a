"""Measures update sparsity: exact on local pairs of files in the page cache, next to two loaded models; quick on the local Hub.

``python -m tests.benchmarks.sparsity LAYERS UPDATE`` prints the number of elements that an update of the virtual models changed, in a
separate process, because the memory of this one counts as that of every program that it starts.
"""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.hub.architectures import llama_tensors
from tests.hub.process import HubProcess
from tests.hub.updates import changed_counts

from .child import Runs, quantity, repeat, run
from .model_files import LAYERS, make, tensors
from .result import Result

RUNS = 5
NAIVE_RUNS = 2
TIMES_FASTER = 8.0
MEMORY = 600e6
MIXED_RATE = 1.5e9  # bytes per second of both sides together
UPDATES = ("scattered-0.3", "scattered-0.01", "small-steps")

LARGE = 80  # layers
QUICK_SEEDS = 3
QUICK_UPDATE = "small-steps"
QUICK_SECONDS = 20
QUICK_BYTES = 140e6
DELAY = "0.05"  # seconds before each answer of the Hub
PLAIN_BYTES = 4_000_000_000  # bytes of the naive download that are measured

# Runs one command and then prints which of these modules were loaded.
_LOADED = """
import sys
from analyzers.__main__ import main
status = main(sys.argv[1:])
print(*(name for name in ("torch", "transformers", "pandas") if name in sys.modules))
sys.exit(status)
"""


def sparsity_exact(folder: Path) -> Iterator[Result]:
    """Measure two checkpoints of 2.2 GB in bf16, with many, few and small changes; then one in fp32 and one in bf16."""
    base = make(folder / "base")
    for update in UPDATES:
        tuned = make(folder / "tuned", update=update)
        ours = repeat(RUNS, _command(base, tuned, "--exact"))
        yield from _exact(f"sparsity, 2 x 2.2 GB, {update}", ours, _changed(LAYERS, update))
        if update == UPDATES[0]:
            yield from _beside_naive(base, tuned, ours)
        shutil.rmtree(tuned)
    shutil.rmtree(base)

    layers = LAYERS // 2 - 1
    base, tuned = make(folder / "base", layers, "fp32"), make(folder / "tuned", layers, "bf16", UPDATES[0])
    ours = repeat(RUNS, _command(base, tuned, "--exact"))
    yield from _exact(f"sparsity, fp32 against bf16, {UPDATES[0]}", ours, _changed(layers, UPDATES[0]), MIXED_RATE)


def _exact(name: str, ours: Runs, changed: int, target: float | None = None) -> Iterator[Result]:
    """Return the time of the whole command, the rate of reading, and whether every run counted the true number of changes."""
    yield Result(f"{name}, whole command", str(ours))
    rates = sorted(each.json["timing"]["bytes_per_second"] for each in ours.each)
    median, best = rates[len(rates) // 2], rates[-1]
    said = f"{quantity(median / 1e9, 'GB/s')} (best {quantity(best / 1e9, 'GB/s')})"
    if target is None:
        yield Result("  both sides together", said)
    else:
        yield Result("  both sides together", said, "", None, f">= {quantity(target / 1e9, 'GB/s')}", median >= target)
    counts = {each.json["num_changed"] for each in ours.each}
    yield Result("  changed", ", ".join(f"{count:,}" for count in counts), "", None, f"{changed:,} (as made)", counts == {changed})


def _beside_naive(base: Path, tuned: Path, ours: Runs) -> Iterator[Result]:
    naive = repeat(NAIVE_RUNS, ["-m", "tests.benchmarks.naive_sparsity", str(base), str(tuned)], variables={"HF_HUB_OFFLINE": "1"})
    ratio = naive.seconds / ours.seconds
    yield Result("  beside two loaded models", str(ours), str(naive), ratio, f">= {TIMES_FASTER:.0f}", ratio >= TIMES_FASTER)
    our_work, naive_work = _median([each.json["timing"]["seconds"] for each in ours.each]), naive.median("seconds")
    yield Result("  without imports", quantity(our_work, "s"), quantity(naive_work, "s"), naive_work / our_work)
    our_cpu, naive_cpu = (_median([each.cpu_seconds for each in runs.each]) for runs in (ours, naive))
    yield Result("  CPU", quantity(our_cpu, "s"), quantity(naive_cpu, "s"), naive_cpu / our_cpu)
    peak, whole = ours.peak_bytes, naive.peak_bytes
    yield Result("  peak memory", _mb(peak), _mb(whole), whole / peak, f"< {_mb(MEMORY)}", peak < MEMORY)
    loaded = run(["-c", _LOADED, "sparsity", str(base), str(tuned), "--exact"]).output.splitlines()[-1]
    yield Result("  heavy libraries loaded", loaded or "none", "torch, transformers", None, "none", not loaded)


def sparsity_quick(folder: Path) -> Iterator[Result]:
    """Measure time, bytes, memory, and the estimate next to the true share on two checkpoints of 141 GB. Naive: downloading both."""
    with HubProcess("--llama", "org/base=bf16", "--llama", f"org/tuned=bf16+{QUICK_UPDATE}", "--delay", DELAY) as hub:
        runs, traffic = [], []
        for seed in range(QUICK_SEEDS + 1):  # the first run is discarded
            before = hub.totals()
            done = run(_command("org/base", "org/tuned", "--seed", str(seed)), variables=hub.environ(folder))
            after = hub.totals()
            if seed:
                runs.append(done)
                traffic.append({key: after[key] - before[key] for key in after})
        plain = run(["-m", "tests.benchmarks.naive_download", "stream", "org/base", "-", str(PLAIN_BYTES)], variables=hub.environ(folder))
    report = runs[0].json
    size = report["base"]["bytes"] + report["tuned"][0]["bytes"]
    ours = Runs(tuple(runs))
    naive = size / (plain.json["bytes"] / plain.json["seconds"])
    target = f"< {QUICK_SECONDS} s"
    said = f"{naive:.0f} s (extrapolated)"
    yield Result(
        f"sparsity, quick, 2 x {size / 2e9:.0f} GB, 50 ms", str(ours), said, naive / ours.seconds, target, ours.seconds < QUICK_SECONDS
    )
    nbytes = max(each["bytes"] for each in traffic)
    yield Result("  bytes sent", _mb(nbytes), "", size / nbytes, f"<= {_mb(QUICK_BYTES)}", nbytes <= QUICK_BYTES)
    yield Result("  range requests", f"{max(each['ranges'] for each in traffic):,}")
    yield Result("  peak memory", _mb(ours.peak_bytes), "", None, f"< {_mb(MEMORY)}", ours.peak_bytes < MEMORY)
    truth = 1 - _changed(LARGE, QUICK_UPDATE) / report["total_parameters"]
    intervals = [each.json["interval"] for each in runs]
    held = sum(each["low"] <= truth <= each["high"] for each in intervals)
    said = "; ".join(f"{100 * each['estimate']:.2f} % ({100 * each['low']:.2f} to {100 * each['high']:.2f})" for each in intervals)
    yield Result("  sparsity", said, "", None, f"{100 * truth:.2f} % (as made)", held == len(intervals))


def _command(base: Path | str, tuned: Path | str, *options: str) -> list[str]:
    return ["-m", "analyzers", "sparsity", str(base), str(tuned), *options, "--json"]


def _changed(layers: int, update: str) -> int:
    """Count the elements that ``update`` changed in a local model, or (`LARGE`) in the one on the Hub."""
    return int(run(["-m", "tests.benchmarks.sparsity", str(layers), update]).output)


def _median(numbers: list[float]) -> float:
    return sorted(numbers)[len(numbers) // 2]


def _mb(nbytes: float) -> str:
    return f"{nbytes / 1e6:,.0f} MB"


if __name__ == "__main__":
    layers = int(sys.argv[1])
    print(sum(changed_counts(llama_tensors() if layers == LARGE else tensors(layers), sys.argv[2]).values()))
