"""What a piece of work allocates at most: on a GPU as torch counts it, on a CPU by following every tensor that an operation makes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import finalize

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class AllocationMeter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts bytes of storages that come into being inside it, until they are freed; ``peak`` is the most at one time.

    What an operation needs for itself and gives back before it ends is not seen; what was there before does not count.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._live = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {id_of(each) for each in tree_leaves((args, kwargs or {})) if isinstance(each, Tensor)}
        result = func(*args, **(kwargs or {}))
        for each in tree_leaves(result):
            if isinstance(each, Tensor) and id_of(each) not in given | self._known:
                self._count(each)
        return result

    def _count(self, tensor: Tensor) -> None:
        storage, key = tensor.untyped_storage(), id_of(tensor)
        size = storage.nbytes()
        self._known.add(key)
        self._live += size
        self.peak = max(self.peak, self._live)
        finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        self._known.discard(key)
        self._live -= size


def id_of(tensor: Tensor) -> int:
    """The same for all views of one storage while it lives."""
    return int(tensor.untyped_storage()._cdata)


@contextmanager
def metered(device: torch.device) -> Iterator[Callable[[], int]]:
    """Inside, the result gives the most bytes allocated at one time so far, beyond what there was at the start."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        yield lambda: torch.cuda.max_memory_allocated(device) - before
        return
    with AllocationMeter() as meter:
        yield lambda: meter.peak
