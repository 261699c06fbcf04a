"""Measures a CUDA GPU: counting and the training monitor (see `gpu_counting`), conflict and precision next to autograd, heads of exit.

``python -m tests.benchmarks.gpu`` prints its name as JSON, or {} if there is none. GPU_BENCHMARK_SMALL=1 tries `gpu_counting` with a CPU in
its place and small data, whose figures say nothing; a CPU's benchmarks run the other programs.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from .child import quantity, run
from .conflict import TIMES_FASTER
from .exit import exit_on_gpu
from .gpu_counting import SMALL, counting
from .precision import precision_on_gpu
from .result import Result


def gpu(folder: Path) -> Iterator[Result]:
    """Run the benchmarks on a GPU, or yield one line that there is none."""
    found = run(["-m", "tests.benchmarks.gpu"], folder=folder).json
    if not found and not SMALL:
        yield Result("GPU", "There is no CUDA device here, so nothing was measured; GPU_BENCHMARK_SMALL=1 tries counting on a CPU.")
        return
    yield Result("GPU", "a CPU in its place, with small data" if SMALL else found["name"])
    yield from counting(folder)
    if SMALL:
        return
    ways = ("naive", "fast", "frugal", "weights")
    program = ["-m", "tests.benchmarks.conflict_ways"]
    runs = {way: run([*program, way, "even", "cuda"]).json for way in ways}
    naive = runs["naive"]
    for way in ways[1:]:
        ours = runs[way]
        ratio, equal = naive["seconds"] / ours["seconds"], abs(ours["conflict_rate"] - naive["conflict_rate"]) < 1e-3
        target, met = (f">= {TIMES_FASTER} times", ratio >= TIMES_FASTER) if way == "fast" else ("", None)
        yield Result(f"  conflict, {way}", quantity(ours["seconds"], "s"), quantity(naive["seconds"], "s"), ratio, target, met)
        mine, theirs = (quantity(each["bytes"] / 1e9, "GB") for each in (ours, naive))
        yield Result("    memory in addition to the model", mine, theirs, naive["bytes"] / ours["bytes"])
        mine, theirs = (f"{each['conflict_rate']:.5f}" for each in (ours, naive))
        yield Result("    conflict rate", mine, theirs, None, "within 0.001", equal)
    yield from precision_on_gpu()
    yield from exit_on_gpu()


def main() -> None:
    """Print the name of the GPU as JSON, or {} without a GPU."""
    import torch

    print(json.dumps({"name": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}))


if __name__ == "__main__":
    main()
