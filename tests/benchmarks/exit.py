"""Measures one step of each head of exit feedback on a GPU, next to all logits at once with torch's own backward pass."""

from collections.abc import Iterator, Mapping

from .child import quantity, run
from .result import Result

VOCABULARIES = (32_000, 128_000)


def exit_on_gpu() -> Iterator[Result]:
    """Measure time and peak memory of each head's fused loss on a CUDA GPU, next to all logits at once."""
    for vocabulary in VOCABULARIES:
        found = run(["-m", "tests.benchmarks.exit_ways", str(vocabulary)]).json
        naive = found["ways"].pop("naive")
        yield Result(f"  exit head, all logits at once, V = {vocabulary:,}", "", f"{_seconds(naive)}, {_bytes(naive)}")
        for method, ours in found["ways"].items():
            yield Result(f"  exit head, {method}, V = {vocabulary:,}", _seconds(ours), _seconds(naive), naive["seconds"] / ours["seconds"])
            yield Result("    memory", _bytes(ours), _bytes(naive), naive["bytes"] / ours["bytes"])


def _seconds(found: Mapping[str, float]) -> str:
    return f"{quantity(found['seconds'], 's')} (min {quantity(found['least'], 's')})"


def _bytes(found: Mapping[str, float]) -> str:
    return quantity(found["bytes"] / 1e6, "MB")
