"""Measures one step of each head of exit feedback, in one thread, next to all logits at once with torch's own backward pass."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from .child import quantity, run
from .result import Result

VOCABULARIES = (32_000, 128_000)
# Memory in multiples of one chunk of logits together with h, its gradient and that of W: up to five arrays of a chunk exist at once.
SHARE_OF_MEMORY = 4.0
SAMPLE_SECONDS = 30


def exit_heads(folder: Path) -> Iterator[Result]:
    """Measure time and peak memory of each head's fused loss; then the whole analysis of the built-in sample."""
    for vocabulary in VOCABULARIES:
        found = run(["-m", "tests.benchmarks.exit_ways", str(vocabulary)]).json
        naive = found["ways"].pop("naive")
        for method, ours in found["ways"].items():
            speed, memory = naive["seconds"] / ours["seconds"], naive["bytes"] / ours["bytes"]
            yield Result(f"exit head, {method}, V = {vocabulary:,}", _seconds(ours), _seconds(naive), speed)
            share = ours["bytes"] / (found["chunk"] + found["inputs"])
            target = f"< {SHARE_OF_MEMORY} of a chunk and gradients ({share:.2f})"
            yield Result("  memory", _bytes(ours), _bytes(naive), memory, target, share < SHARE_OF_MEMORY)
    whole = run(["-m", "analyzers", "exit", "sample:tiny-bf16", "--json"], folder=folder)
    met = whole.seconds < SAMPLE_SECONDS
    yield Result("exit, built-in sample", quantity(whole.seconds, "s"), "", None, f"< {SAMPLE_SECONDS} s", met)


def exit_on_gpu() -> Iterator[Result]:
    """Measure time and peak memory of each head's fused loss on a CUDA GPU, next to all logits at once."""
    for vocabulary in VOCABULARIES:
        found = run(["-m", "tests.benchmarks.exit_ways", str(vocabulary), "cuda"]).json
        naive = found["ways"].pop("naive")
        yield Result(f"  exit head, all logits at once, V = {vocabulary:,}", "", f"{_seconds(naive)}, {_bytes(naive)}")
        for method, ours in found["ways"].items():
            yield Result(f"  exit head, {method}, V = {vocabulary:,}", _seconds(ours), _seconds(naive), naive["seconds"] / ours["seconds"])
            yield Result("    memory", _bytes(ours), _bytes(naive), naive["bytes"] / ours["bytes"])


def _seconds(found: Mapping[str, float]) -> str:
    return f"{quantity(found['seconds'], 's')} (min {quantity(found['least'], 's')})"


def _bytes(found: Mapping[str, float]) -> str:
    return quantity(found["bytes"] / 1e6, "MB")
