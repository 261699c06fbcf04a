"""What an optimizer intends: its parameters' watched values in float64, stepped by an optimizer of the same class."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Adamax, AdamW, Optimizer, RMSprop

from mantissa.training import parts

ELEMENTWISE: tuple[type[Optimizer], ...] = (SGD, Adam, AdamW, Adamax, RMSprop)
"""Optimizers whose update of an element depends on that element alone, so that a sample can be stepped without the rest."""


@dataclass(slots=True)
class Followed:
    """A tensor of the optimizer and its shadow. rows: the watched blocks, None for all of it. weight: (n,) the shadow.

    start: stored values when the shadow began; stored, last: stored values and shadow at the last look. version: torch's counter of
    writes to the tensor after the last step.
    """

    rows: Tensor | None
    weight: Tensor
    start: Tensor
    stored: Tensor
    last: Tensor
    version: int


class Shadow:
    """The shadow of one optimizer's parameters, stepped after each of its steps on the same gradients, with the settings of that step.

    rows: the tensors to follow, and their watched blocks. In fp32 a learning rate of 1e-8 would move few of the shadow's weights; float64
    is used where the device has it. sparse: tensors given up because their gradients are not strided. late: tensors followed since a later
    step, because they joined the optimizer, or were loaded or written outside its step.
    """

    def __init__(self, optimizer: Optimizer, rows: Mapping[Tensor, Tensor | None]) -> None:
        self.followed: dict[Tensor, Followed] = {}
        self.sparse: set[Tensor] = set()
        self.late: set[Tensor] = set()
        self._optimizer = optimizer
        self._rows = rows
        self._twin: Any = cast(Any, type(optimizer))([torch.zeros(())])  # its groups are replaced in each step
        self.follow()
        self.late.clear()
        self._handles = [
            optimizer.register_step_pre_hook(lambda *_: self.follow()),
            optimizer.register_step_post_hook(lambda *_: self._step()),
            optimizer.register_load_state_dict_post_hook(lambda _: self._restart()),
        ]

    @torch.no_grad()
    def follow(self) -> None:
        """Begin the shadow of each tensor that has none, or that was written since the last step."""
        for tensor in parts.stepped(self._optimizer):
            known = self.followed.get(tensor)
            frozen = isinstance(tensor, nn.Parameter) and not tensor.requires_grad
            if tensor not in self._rows or tensor in self.sparse or frozen or (known and known.version == tensor._version):
                continue
            if known:
                self._twin.state.pop(known.weight, None)
            rows = self._rows[tensor]
            stored = parts.watched(tensor.detach().reshape(-1), rows).clone()
            precision = torch.float32 if tensor.device.type == "mps" else torch.float64
            weight = stored.to(precision, copy=True)
            for name, value in self._optimizer.state.get(tensor, {}).items():
                if isinstance(value, Tensor) and name != "step":
                    value = parts.watched(value.to_dense().reshape(-1), rows).to(precision, copy=True)
                self._twin.state[weight][name] = value.clone() if isinstance(value, Tensor) else value
            self.followed[tensor] = Followed(rows, weight, stored, stored, weight.clone(), tensor._version)
            self.late.add(tensor)

    def close(self) -> None:
        """Free the shadow and leave the optimizer alone."""
        for handle in self._handles:
            handle.remove()
        self.followed = {}
        self._twin = None

    @torch.no_grad()
    def _step(self) -> None:
        """Step the shadow. After the optimizer, since a closure computes the gradients within its step."""
        groups = []
        for group in self._optimizer.param_groups:
            weights = []
            for tensor in group["params"]:
                if tensor.grad is not None and tensor.grad.layout is not torch.strided and tensor in self.followed:
                    self.sparse.add(tensor)
                    del self.followed[tensor]
                if (known := self.followed.get(tensor)) is None:
                    continue
                known.version = tensor._version
                if tensor.grad is not None:
                    known.weight.grad = parts.watched(tensor.grad.detach().reshape(-1), known.rows).to(known.weight.dtype)
                    weights.append(known.weight)
            groups.append({**group, "params": weights, "differentiable": False})
        self._twin.param_groups = groups
        # A fused step that follows a GradScaler has divided the gradients by its scale, unless it found an infinite one and did nothing.
        self._twin.found_inf = getattr(self._optimizer, "found_inf", None)
        self._twin.step()
        for known in self.followed.values():
            known.weight.grad = None

    def _restart(self) -> None:
        self.followed.clear()
        self._twin.state.clear()
        self.follow()


def unwrapped(optimizer: Any) -> Any:
    """The optimizer within those that accelerate puts around it."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner
    return optimizer
