"""Measures gradient conflict on a Llama of 8 layers, with 32 samples of 128 tokens and with the built-in text, next to autograd sample by
sample without padding. Loading is excluded.
"""

from collections.abc import Iterator
from pathlib import Path
from statistics import median

from .child import Run, quantity, run
from .result import Result

RUNS = 3
TIMES_FASTER = 2.0
SHARE_OF_MEMORY = 0.25
SAMPLE_SECONDS = 30


def conflict(folder: Path) -> Iterator[Result]:
    """Measure all rates, batches and deciles of every layer; then with every weight; then samples of many lengths, and the built-in
    sample.
    """
    ways = {way: (way, "even") for way in ("naive", "fast", "weights")}
    ways |= {"naive, text": ("naive", "builtin"), "fast, text": ("fast", "builtin")}
    runs: dict[str, list[Run]] = {way: [] for way in ways}
    for _ in range(RUNS):
        for way, asked in ways.items():  # alternating, so that other load on the machine affects all ways
            runs[way].append(run(["-m", "tests.benchmarks.conflict_ways", *asked]))
    seconds = {way: median(each.json["seconds"] for each in done) for way, done in runs.items()}
    memory = {way: max(each.json["bytes"] for each in done) for way, done in runs.items()}
    rates = {way: done[0].json["conflict_rate"] for way, done in runs.items()}

    def shown(way: str) -> str:
        return f"{quantity(seconds[way], 's')} (min {quantity(min(each.json['least'] for each in runs[way]), 's')})"

    ratio = seconds["naive"] / seconds["fast"]
    yield Result("conflict, 8 layers, 32 x 128", shown("fast"), shown("naive"), ratio, f">= {TIMES_FASTER} times", ratio >= TIMES_FASTER)
    of_even = [rates[way] for way, (_, text) in ways.items() if text == "even"]
    same = max(of_even) - min(of_even) < 1e-4
    yield Result("  conflict rate", f"{rates['fast']:.5f}", f"{rates['naive']:.5f}", None, "the same", same)
    least = memory["fast"] / memory["naive"]
    most = f"<= {SHARE_OF_MEMORY:.0%} of naive"
    both = quantity(memory["fast"] / 1e6, "MB"), quantity(memory["naive"] / 1e6, "MB")
    yield Result("  memory beside the model", *both, 1 / least, most, least <= SHARE_OF_MEMORY)
    yield Result("  with every weight", shown("weights"), "", seconds["naive"] / seconds["weights"])
    ratio = seconds["naive, text"] / seconds["fast, text"]
    target = f">= {TIMES_FASTER} times"
    yield Result("conflict, 8 layers, built-in text", shown("fast, text"), shown("naive, text"), ratio, target, ratio >= TIMES_FASTER)
    same = abs(rates["fast, text"] - rates["naive, text"]) < 1e-4
    yield Result("  conflict rate", f"{rates['fast, text']:.5f}", f"{rates['naive, text']:.5f}", None, "the same", same)
    whole = [run(["-m", "analyzers", "conflict", "sample:tiny-bf16", "--json"], folder=folder) for _ in range(RUNS)]
    worst = max(each.seconds for each in whole)
    yield Result("conflict, built-in sample, 50 samples", quantity(worst, "s"), "", None, f"< {SAMPLE_SECONDS} s", worst < SAMPLE_SECONDS)
