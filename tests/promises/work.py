"""Measures the work of `dtype`, `compare` and `sparsity` beside that of a plain loop over the same bytes, in one process.

``python -m tests.promises.work MODE MODEL [MODEL]``, of bf16 values, prints a JSON object: the least processor seconds of all threads for
each report and for the loop, of several runs, and what the reports say. Quick mode is held against NumPy's counts of the blocks that it
samples, exact mode against a compiled loop over the files.
"""

import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from analyzers.checkpoints import Access, Chunk, Plan, Span, open_checkpoint, stream
from analyzers.comparison import compare, sparsity
from analyzers.dtype import DtypeRequest
from analyzers.dtype import analyze as dtype
from tests.hub.architectures import llama

CHUNK = 4 << 20  # bytes
RUNS = {"quick": 1, "exact": 3}  # the first ones are not counted: they load compiled loops, and open connections

Codes = NDArray[np.uint16]


def main(mode: Any, *models: str) -> None:
    """Measure one mode on one model or two."""
    access = Access(local=True)
    calls: dict[str, Callable[[], Iterator[Any]]] = {"dtype": lambda: dtype(DtypeRequest(model=models[0], mode=mode), access)}
    if len(models) > 1:
        calls = {
            "compare": lambda: compare.analyze(compare.CompareRequest(models=models, mode=mode), access),
            "sparsity": lambda: sparsity.analyze(sparsity.SparsityRequest(base=models[0], tuned=models[1:], mode=mode), access),
        }
    found: dict[str, Any] = {}
    for name, call in list(calls.items())[: None if mode == "exact" else 1]:
        (report,) = deque(call(), maxlen=1)
        found[name] = _least(partial(_run, call), RUNS[mode])
        if name == "sparsity":
            found["changed"] = report.num_changed
        else:
            found |= {"bytes": report.bytes_read, "verdict": report.lineage.verdict if name == "dtype" else report.relation.kind}
    if mode == "quick":
        blocks = _sampled(models, access)
        found |= {"plain": _least(lambda: [_count_with_numpy(*each) for each in blocks], 1)}
        found |= {"sampled": sum(side.nbytes for each in blocks for side in each)}
    else:
        found["differing"] = _count_files(models)
        found["plain"] = _least(lambda: _count_files(models), RUNS[mode])
    print(json.dumps(found))


def _run(call: Callable[[], Iterator[Any]]) -> None:
    deque(call(), maxlen=0)


def _least(call: Callable[[], object], runs: int) -> float:
    """Return the least processor time of a call, of all threads."""
    seconds = []
    for _ in range(runs):
        start = time.process_time()
        call()
        seconds.append(time.process_time() - start)
    return min(seconds)


def _sampled(models: tuple[str, ...], access: Access) -> list[tuple[Codes, ...]]:
    """Read about the blocks that quick mode reads of the models, which have the same tensors."""
    with ExitStack() as stack:
        sides = [stack.enter_context(open_checkpoint(model, access)) for model in models]
        request = compare.CompareRequest(models=models)
        plan = Plan.of(sides, list(zip(*(side.tensors for side in sides), strict=True)), "quick", request.budget, request.seed)

        def work(_: Span, chunks: Iterator[Chunk]) -> list[tuple[Codes, ...]]:
            return [tuple(np.array(side) for side in chunk.sides) for chunk in chunks]

        return [block for step in stream(sides, plan.spans, work) for block in step.result or ()]


def _count_with_numpy(*sides: Codes) -> tuple[Any, ...]:
    """Count the patterns of each side, and those that differ."""
    return [np.bincount(side, minlength=1 << 16) for side in sides], np.count_nonzero(sides[0] != sides[-1])


@njit(nogil=True)
def _differing(x: Codes, p: Codes) -> int:
    found = 0
    for i in range(x.size):
        found += x[i] != p[i]
    return found


@njit(nogil=True)
def _count(x: Codes, counts: NDArray[np.int64]) -> int:
    for pattern in x:
        counts[pattern] += 1
    return 0


def _count_files(models: tuple[str, ...]) -> int:
    """Count the patterns of a file, or those that differ in two files of the same length."""
    buffers, counts, found = [np.empty(CHUNK // 2, np.uint16) for _ in models], np.zeros(1 << 16, np.int64), 0
    with ExitStack() as stack:
        files = [stack.enter_context((Path(model) / "model.safetensors").open("rb", buffering=0)) for model in models]
        while size := min([file.readinto(buffer.data) for file, buffer in zip(files, buffers, strict=True)]):
            parts = [buffer[: size // 2] for buffer in buffers]
            found += _count(parts[0], counts) if len(models) == 1 else _differing(*parts)
    return found


def printed(module: str, *arguments: str, variables: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run a module as a program, and return the JSON object that it prints."""
    command = [sys.executable, "-m", module, *arguments]
    run = subprocess.run(command, env={**os.environ, **(variables or {})}, capture_output=True, text=True, timeout=280)
    assert run.returncode == 0, run.stderr[-2000:]
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def write_llama(folder: Path, layers: int = 1, update: str = "none", hidden: int = 1024) -> str:
    """Write a Llama-like model of 25 MB a layer, 100 MB with twice the ``hidden`` size, into ``folder``, and return its path."""
    folder.mkdir()
    width, vocabulary = 11 * hidden // 4, 4 * hidden
    for name, contents in llama(layers=layers, hidden=hidden, width=width, vocabulary=vocabulary, shards=1, update=update).items():
        (folder / name).write_bytes(contents if isinstance(contents, bytes) else contents.read(0, contents.size))
    return str(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
