"""Counts how often a device would be waited for, by what is called on CPU tensors."""

from collections import Counter
from types import TracebackType
from typing import Any, Self

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

# On a GPU each of these waits for the number of elements of its result, or for a value.
_WAIT = ("_local_scalar_dense", "nonzero", "bincount", "masked_select", "_unique2", "unique_consecutive", "equal", "is_nonzero")


class Readbacks(TorchDispatchMode):
    """``counts``: copies to the host ("cpu"), and by name the operations that wait for the device in passing."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self._copies = _Copies(self.counts)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        flags = name in ("index", "index_put", "index_put_") and any(
            each is not None and each.dtype in (torch.bool, torch.uint8) for each in args[1]
        )
        self.counts.update([name] if name in _WAIT or flags else [])
        return function(*args, **kwargs or {})

    def __enter__(self) -> Self:
        self._copies.__enter__()
        super().__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        super().__exit__(kind, error, trace)
        self._copies.__exit__(kind, error, trace)


class _Copies(TorchFunctionMode):
    def __init__(self, counts: Counter[str]) -> None:
        super().__init__()
        self._counts = counts

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.Tensor.cpu:
            self._counts["cpu"] += 1
        return function(*args, **kwargs or {})
