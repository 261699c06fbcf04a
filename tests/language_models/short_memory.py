"""Runs analyses that run out of memory: ``python -m tests.language_models.short_memory KIND FOLDER MEGABYTES...``.

Prints as JSON how each analysis ends. A number is the address space left, first when the weights are loaded, then when the model starts to
run.
"""

import json
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from analyzers.checkpoints import Access
from analyzers.language_models.load import OpenModel, open_model
from analyzers.language_models.prompts import Batch
from tests.language_models.analyses import ANALYSES, report, request


@contextmanager
def left(megabytes: int) -> Iterator[None]:
    taken, hardest = psutil.Process().memory_info().vms, resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (taken + (megabytes << 20), hardest))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (hardest, hardest))


def loaded(opened: OpenModel, megabytes: int) -> None:
    with left(megabytes):
        opened.load()


def ran(kind: str, folder: str, megabytes: int) -> None:
    items = iter(ANALYSES[kind](request(kind, folder), Access(local=True)))
    next(item for item in items if item.total and item.unit != "bytes")
    with left(megabytes):
        for _ in items:
            pass


def end(step: object, *given: object) -> str:
    try:
        step(*given)  # type: ignore[operator]
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "done"


if __name__ == "__main__":
    import torch

    kind, folder, *sizes = sys.argv[1:]
    torch.set_num_threads(1)
    report(kind, request(kind, "sample:tiny-fp32"))  # load threads, libraries and their buffers first
    ends = []
    for megabytes in map(int, sizes):
        with open_model(folder, Access(local=True)) as opened:
            token_ids = torch.tensor([[5, 6, 7, 8]])
            opened.check(Batch(token_ids, token_ids, (4,)))
            list(opened.fetch())
            opened._needs = 0  # pretend that enough memory was free when it was checked
            ends.append(("load", megabytes, end(loaded, opened, megabytes)))
        ends.append(("run", megabytes, end(ran, kind, folder, megabytes)))
    print(json.dumps(ends))
