"""Follows the updates that an optimizer intends: its parameters' watched values in float64, stepped by an optimizer of the same class."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Adamax, AdamW, Optimizer, RMSprop

from mantissa.training import watched_values

ELEMENTWISE: tuple[type[Optimizer], ...] = (SGD, Adam, AdamW, Adamax, RMSprop)
"""Optimizers whose update of an element depends on that element alone, so that a sample can be stepped without the rest."""
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(slots=True)
class Followed:
    """A tensor of the optimizer and its shadow. rows: the watched blocks, None for all values. weight: (n,) the shadow.

    start: stored values when the shadow began; stored, last: stored values and shadow at the last look; steps: number followed.
    written, state: stored values after the last step, and the tensors of the optimizer's state with torch's counters of writes to them.
    """

    rows: Tensor | None
    weight: Tensor
    start: Tensor
    stored: Tensor
    last: Tensor
    written: Tensor
    state: list[tuple[ReferenceType[Tensor], int]]
    steps: int = 0


class Shadow:
    """The shadow of one optimizer's parameters, stepped after each of its steps with the same gradients and settings.

    rows: the tensors to follow -> their watched blocks. The shadow is in float64 if the device supports it, since in float32 a learning
    rate of 1e-8 would move few weights. sparse: tensors no longer followed because their gradients are not strided. late: tensors followed
    since a later step, because they joined the optimizer, or because they or their states were loaded or written outside its step.
    """

    def __init__(self, optimizer: Optimizer, rows: Mapping[Tensor, Tensor | None]) -> None:
        self.followed: dict[Tensor, Followed] = {}
        self.sparse: set[Tensor] = set()
        self.late: set[Tensor] = set()
        self._optimizer = optimizer
        self._rows = rows
        self._kinds = {tensor: _kind(tensor) for tensor in rows}
        self._twin: Any = cast(Any, type(optimizer))([torch.zeros(())])  # the groups are replaced in each step
        self.follow()
        self.late.clear()
        self._handles = [
            optimizer.register_step_pre_hook(lambda *_: self.follow()),
            optimizer.register_step_post_hook(lambda *_: self._step()),
        ]
        # This hook runs before the user's own hooks after a step, which may write weights or free gradients.
        cast(Any, self._handles[-1]).hooks_dict_ref().move_to_end(self._handles[-1].id, last=False)

    @torch.no_grad()
    def follow(self) -> None:
        """Begin a new shadow of each tensor that has none, or that was written since the last step, itself or its state."""
        for tensor in [each for each in self.followed if _kind(each) != self._kinds[each]]:
            self._twin.state.pop(self.followed.pop(tensor).weight, None)
        written = self._written()
        for tensor in watched_values.stepped(self._optimizer):
            known = self.followed.get(tensor)
            frozen = isinstance(tensor, nn.Parameter) and not tensor.requires_grad
            if tensor not in self._rows or tensor in self.sparse or frozen or (known and tensor not in written):
                continue
            if _kind(tensor) != self._kinds[tensor]:
                continue
            if known:
                self._twin.state.pop(known.weight, None)
            rows = self._rows[tensor]
            stored = watched_values.watched_values(tensor.detach().reshape(-1), rows).clone()
            precision = torch.float32 if tensor.device.type == "mps" else torch.float64
            weight = stored.to(precision, copy=True)
            state = self._optimizer.state.get(tensor, {})
            for name, value in state.items():
                if isinstance(value, Tensor) and name != "step":
                    value = watched_values.watched_values(value.to_dense().reshape(-1), rows).to(precision, copy=True)
                self._twin.state[weight][name] = value.clone() if isinstance(value, Tensor) else value
            self.followed[tensor] = Followed(rows, weight, stored, stored, weight.clone(), stored, _writes(state))
            self.late.add(tensor)

    def close(self) -> None:
        """Free the shadow and remove its hooks from the optimizer."""
        for handle in self._handles:
            handle.remove()
        self.followed = {}
        self._twin = None

    @torch.no_grad()
    def _step(self) -> None:
        """Step the shadow after the optimizer, since a closure computes the gradients within the optimizer's step."""
        groups = []
        for group in self._optimizer.param_groups:
            weights = []
            for tensor in group["params"]:
                if tensor.grad is not None and tensor.grad.layout is not torch.strided and tensor in self.followed:
                    self.sparse.add(tensor)
                    del self.followed[tensor]
                if (known := self.followed.get(tensor)) is None:
                    continue
                known.steps += 1
                if tensor.grad is not None:
                    now = watched_values.watched_values(tensor.detach().reshape(-1), known.rows)
                    known.written = now.clone() if known.rows is None else now
                    known.state = _writes(self._optimizer.state.get(tensor, {}))
                    known.weight.grad = watched_values.watched_values(tensor.grad.detach().reshape(-1), known.rows).to(known.weight.dtype)
                    weights.append(known.weight)
            # On a CPU, the fused step takes a third of the time of torch's default.
            fits = "fused" in group and not isinstance(group["lr"], Tensor) and all(each.is_cpu for each in weights)
            one_call = {"fused": True, "foreach": False} if fits else {}
            groups.append({**group, "params": weights, "differentiable": False} | one_call)
        self._twin.param_groups = groups
        # A fused step under a GradScaler has already divided the gradients by the scale, unless one was infinite and the step was skipped.
        self._twin.found_inf = getattr(self._optimizer, "found_inf", None)
        self._twin.step()
        for known in self.followed.values():
            known.weight.grad = None

    def _written(self) -> set[Tensor]:
        """Return the tensors whose watched values or states have changed since the last step."""
        written = set()
        compared = defaultdict(list)
        for tensor, known in self.followed.items():
            state = _writes(self._optimizer.state.get(tensor, {}))
            if len(state) != len(known.state) or any(a is not b or v != w for (a, v), (b, w) in zip(state, known.state, strict=True)):
                written.add(tensor)
                continue
            now = watched_values.watched_values(tensor.detach().reshape(-1), known.rows)
            compared[tensor.device].append((tensor, now, (now != known.written).any()))
        for rows in compared.values():  # synchronize once per device
            for (tensor, now, _), differs in zip(rows, torch.stack([flag for *_, flag in rows]).tolist(), strict=True):
                bits = _BITS[tensor.element_size()]  # compare bits, since NaN differs from itself
                if differs and not torch.equal(now.view(bits), self.followed[tensor].written.view(bits)):
                    written.add(tensor)
        return written


def _kind(tensor: Tensor) -> tuple[torch.Size, torch.dtype, torch.device]:
    return tensor.shape, tensor.dtype, tensor.device


def _writes(state: Mapping[str, Any]) -> list[tuple[ReferenceType[Tensor], int]]:
    """Return weak references to the tensors of a state, which may be moved to another device, and torch's counters of writes to them."""
    return [(ref(value), -1 if value.is_inference() else value._version) for value in state.values() if isinstance(value, Tensor)]


def unwrapped(optimizer: Any) -> Any:
    """Return the innermost optimizer, without accelerate's wrappers."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner
    return optimizer
