"""Measures the work of `compare` and `sparsity` beside that of a plain loop over the same bytes, in one process.

``python -m tests.promises.comparison_work MODE MODEL MODEL`` prints a JSON object: processor seconds of all threads for the reports and for
the loop, and what the reports say they read.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from analyzers.checkpoints import Access, Chunk, Plan, Span, open_checkpoint, stream
from analyzers.comparison import compare, sparsity
from tests.promises.work import last, processor_seconds

CHUNK = 4 << 20  # bytes
SAMPLES = ("sample:tiny-bf16", "sample:tiny-tuned")

Pair = tuple[NDArray[np.uint16], NDArray[np.uint16]]


def main(mode: Any, *models: str) -> None:
    """Measure one mode on two models of bf16 values: quick beside NumPy's counts of the sampled blocks, exact beside a compiled loop."""
    access = Access(local=True)

    def compared(*models: str) -> Any:
        return last(compare.analyze(compare.CompareRequest(models=models, mode=mode), access))

    def changed(base: str, *tuned: str) -> Any:
        return last(sparsity.analyze(sparsity.SparsityRequest(base=base, tuned=tuned, mode=mode), access))

    compared(*SAMPLES)  # loads compiled loops
    reports = []
    found: dict[str, Any] = {}
    if mode == "quick":
        found["compare"] = processor_seconds(lambda: reports.append(compared(*models)))
        blocks = _sampled(models, access)
        found |= {"plain": processor_seconds(lambda: [_count_with_numpy(*pair) for pair in blocks]), "blocks": len(blocks)}
        found["sampled"] = sum(side.nbytes for pair in blocks for side in pair)
    else:
        changed(*SAMPLES)
        _differing(np.zeros(1, np.uint16), np.zeros(1, np.uint16))  # compiles it
        works = {
            "compare": lambda: reports.append(compared(*models)),
            "sparsity": lambda: found.update(changed=changed(*models).num_changed),
            "plain": lambda: found.update(differing=_count_files(models)),
        }
        found |= {name: min(processor_seconds(work) for _ in range(2)) for name, work in works.items()}
    found |= {"bytes": reports[0].bytes_read, "verdict": reports[0].relation.kind}
    print(json.dumps(found))


def _sampled(models: tuple[str, ...], access: Access) -> list[Pair]:
    """Read about the blocks that quick mode reads of both models, which have the same tensors."""
    with ExitStack() as stack:
        sides = [stack.enter_context(open_checkpoint(model, access)) for model in models]
        groups = list(zip(*(side.tensors for side in sides), strict=True))
        request = compare.CompareRequest(models=models)
        plan = Plan.of(sides, groups, "quick", request.budget, request.seed)

        def work(_: Span, chunks: Iterator[Chunk]) -> list[Pair]:
            return [(chunk.sides[0].copy(), chunk.sides[1].copy()) for chunk in chunks]

        return [pair for step in stream(sides, plan.spans, work) for pair in step.result or ()]


def _count_with_numpy(x: NDArray[np.uint16], p: NDArray[np.uint16]) -> tuple[Any, ...]:
    """Count the patterns of both sides, and those that differ."""
    return np.bincount(x, minlength=1 << 16), np.bincount(p, minlength=1 << 16), np.count_nonzero(x != p)


@njit(nogil=True)
def _differing(x: NDArray[np.uint16], p: NDArray[np.uint16]) -> int:
    found = 0
    for i in range(x.size):
        found += x[i] != p[i]
    return found


def _count_files(models: tuple[str, ...]) -> int:
    """Count the patterns that differ, of two files of the same length."""
    buffers, found = [np.empty(CHUNK // 2, np.uint16) for _ in models], 0
    with ExitStack() as stack:
        files = [stack.enter_context((Path(model) / "model.safetensors").open("rb", buffering=0)) for model in models]
        while size := min([file.readinto(buffer.data) for file, buffer in zip(files, buffers, strict=True)]):
            found += _differing(*(buffer[: size // 2] for buffer in buffers))
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
