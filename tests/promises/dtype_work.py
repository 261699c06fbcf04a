"""Measures the work of `dtype` beside that of a plain loop over the same bytes, in one process: ``python -m tests.promises.dtype_work``.

Prints a JSON object: processor seconds of all threads for the report and for the loop, and what the report says it read.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from analyzers.checkpoints import Access, Plan, open_checkpoint, stream
from analyzers.dtype import DtypeRequest, analyze
from tests.promises.work import last, processor_seconds

CHUNK = 4 << 20  # bytes


def main(model: str, mode: Any) -> None:
    """Measure one mode on one model of bf16 values: quick beside NumPy's histogram of each sampled block, exact beside a compiled loop."""
    request, access = DtypeRequest.model_validate({"model": model, "mode": mode}), Access(local=True)
    last(analyze(request.model_copy(update={"model": "sample:tiny-bf16"}), access))  # loads compiled loops
    reports: list[Any] = []

    def answer() -> None:
        reports.append(last(analyze(request, access)))

    if mode == "quick":
        seconds = processor_seconds(answer)
        blocks = _sampled(request, access)
        assert sum(block.nbytes for block in blocks) == reports[0].bytes_read
        plain = processor_seconds(lambda: [np.bincount(block, minlength=1 << 16) for block in blocks])
    else:
        counts = np.zeros(1 << 16, np.int64)
        _count(np.zeros(1, np.uint16), counts)  # compiles it
        path = Path(model) / "model.safetensors"
        seconds, plain = (min(processor_seconds(work) for _ in range(3)) for work in (answer, lambda: _count_file(path, counts)))
    report = reports[0]
    print(json.dumps({"seconds": seconds, "plain": plain, "bytes": report.bytes_read, "verdict": report.lineage.verdict}))


def _sampled(request: DtypeRequest, access: Access) -> list[NDArray[Any]]:
    """Read the blocks that quick mode reads of a model."""
    checkpoint = open_checkpoint(request.model, access)
    try:
        plan = Plan.of([checkpoint], [(tensor,) for tensor in checkpoint.tensors], "quick", request.budget, request.seed)
        steps = stream([checkpoint], plan.spans, lambda _, chunks: [chunk.codes.copy() for chunk in chunks])
        return [block for step in steps for block in step.result or ()]
    finally:
        checkpoint.close()


@njit(nogil=True)
def _count(patterns: NDArray[np.uint16], counts: NDArray[np.int64]) -> None:
    for pattern in patterns:
        counts[pattern] += 1


def _count_file(path: Path, counts: NDArray[np.int64]) -> None:
    buffer = np.empty(CHUNK // 2, np.uint16)
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(buffer.data):
            _count(buffer[: size // 2], counts)


if __name__ == "__main__":
    main(*sys.argv[1:])
