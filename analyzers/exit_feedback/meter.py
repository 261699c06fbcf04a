"""Peak memory of a computation: on a GPU as torch counts it, on a CPU by tracking every tensor that an operation creates."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import finalize

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class AllocationMeter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts bytes of storages created inside it until they are freed; ``peak`` is the most at one time.

    Workspace within one operation is not seen; storages that existed before do not count.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._live: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = {storage_id(leaf) for leaf in tree_leaves((args, kwargs or {})) if isinstance(leaf, Tensor)}
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and (key := storage_id(leaf)) not in inputs | self._live.keys():
                self._live[key] = leaf.untyped_storage().nbytes()
                finalize(leaf.untyped_storage(), self._live.pop, key)
        self.peak = max(self.peak, sum(self._live.values()))
        return result


def storage_id(tensor: Tensor) -> int:
    """Equal for all views of one storage while it lives."""
    return int(tensor.untyped_storage()._cdata)


@contextmanager
def metered(device: torch.device) -> Iterator[Callable[[], int]]:
    """Yields a function that returns the peak bytes allocated so far, in addition to those at the start."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        yield lambda: torch.cuda.max_memory_allocated(device) - before
        return
    with AllocationMeter() as meter:
        yield lambda: meter.peak
