"""Measures the parents of a merge of 141 GB among two candidates of 141 GB, from the local Hub with 50 ms before each answer."""

from collections.abc import Iterator
from pathlib import Path

from tests.hub.process import HubProcess

from .child import quantity, run
from .result import Result

RUNS = 3
DELAY = "0.05"  # seconds before each answer of the Hub
SECONDS, NBYTES, MEMORY = 25, 200e6, 500e6
WEIGHT, WITHIN, PROVEN = 0.35, 0.005, 0.99
MODELS = ("--llama", "org/first=bf16", "--llama", "org/second=bf16+independent", "--llama", f"org/merge=bf16+merged-{WEIGHT}")


def parents_quick(folder: Path) -> Iterator[Result]:
    """Measure time, bytes, memory, the weights next to the true ones, and the share that is proven."""
    with HubProcess(*MODELS, "--delay", DELAY) as hub:
        runs, sent = [], []
        for seed in range(RUNS + 1):  # the first run is discarded
            before = hub.totals()["bytes"]
            command = ["-m", "analyzers", "parents", "org/merge", "org/first", "org/second", "--seed", str(seed), "--json"]
            done = run(command, variables=hub.environ(folder))
            if seed:
                runs.append(done)
                sent.append(hub.totals()["bytes"] - before)
    seconds = sorted(each.seconds for each in runs)
    said = f"{quantity(seconds[RUNS // 2], 's')} (min {quantity(seconds[0], 's')})"
    yield Result("parents, quick, 3 x 141 GB, 50 ms", said, "", None, f"< {SECONDS} s", seconds[RUNS // 2] < SECONDS)
    yield Result("  bytes sent", quantity(max(sent) / 1e6, "MB"), "", None, f"<= {NBYTES / 1e6:.0f} MB", max(sent) <= NBYTES)
    peak = max(each.peak_bytes for each in runs)
    yield Result("  peak memory", quantity(peak / 1e6, "MB"), "", None, f"< {MEMORY / 1e6:.0f} MB", peak < MEMORY)
    reports = [each.json for each in runs]
    verdicts = {each["verdict"] for each in reports}
    yield Result("  verdict", ", ".join(verdicts), "", None, "merge", verdicts == {"merge"})
    errors = [abs(each["fit"]["parents"][0]["weight"] - WEIGHT) for each in reports]
    yield Result("  weight off by at most", f"{max(errors):.1e}", "", None, f"<= {WITHIN}", max(errors) <= WITHIN)
    proven = min(each["fit"]["exact_share"] for each in reports)
    yield Result("  exactly the merge", f"{100 * proven:.2f} %", "", None, f"> {100 * PROVEN:.0f} %", proven > PROVEN)
