"""Counts synchronizations with a device, and its memory, by the operations called on CPU tensors."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import finalize

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# On a GPU, these operations wait for the number of elements of their result, or for a value.
_WAIT = ("_local_scalar_dense", "nonzero", "bincount", "masked_select", "_unique2", "unique_consecutive", "equal", "is_nonzero")


@contextmanager
def readbacks() -> Iterator[Counter[str]]:
    """Count copies to the host ("cpu"), and by name the operations that wait for the device implicitly."""
    counts: Counter[str] = Counter()
    modes: Any = _Operations, _Copies
    with modes[0](counts), modes[1](counts):
        yield counts


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, counts: Counter[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._counts = counts

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        by_mask = name in ("index", "index_put", "index_put_") and any(
            each is not None and each.dtype in (torch.bool, torch.uint8) for each in args[1]
        )
        self._counts.update([name] if name in _WAIT or by_mask else [])
        return function(*args, **kwargs or {})


class _Copies(TorchFunctionMode):
    def __init__(self, counts: Counter[str]) -> None:
        super().__init__()
        self._counts = counts

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.Tensor.cpu:
            self._counts["cpu"] += 1
        return function(*args, **kwargs or {})


@contextmanager
def peak_bytes() -> Iterator[list[int]]:
    """Measure the most bytes that results of operations take together, without what operations need for themselves: [now, peak]."""
    sizes = [0, 0]
    mode: Any = _Bytes
    with mode(sizes):
        yield sizes


class _Bytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, sizes: list[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._sizes = sizes
        self._users: Counter[int] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {each.untyped_storage().data_ptr() for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)}
        result = function(*args, **kwargs or {})
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                address, nbytes = tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes()
                if self._users[address] or address not in given:  # else it shares the memory of what was there before
                    self._sizes[0] += 0 if self._users[address] else nbytes
                    self._users[address] += 1
                    finalize(tensor, self._free, address, nbytes)
        self._sizes[1] = max(self._sizes)
        return result

    def _free(self, address: int, nbytes: int) -> None:
        self._users[address] -= 1
        self._sizes[0] -= 0 if self._users[address] else nbytes
