"""Finds master weights: copies in a finer format that an optimizer steps in place of a model's parameters."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from analyzers.checkpoints import quoted
from analyzers.core.errors import InvalidRequest
from mantissa.training import watched_values


def given_masters(masters: Mapping[str, Tensor] | Sequence[Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Return the masters by the name of their parameter. Raises InvalidRequest if names or shapes do not fit.

    masters: tensors by name, or of all trainable parameters in the order of ``model.parameters()``.
    """
    parameters = dict(watched_values.parameters(model))
    if not isinstance(masters, Mapping | Sequence) or not all(
        isinstance(each, Tensor) for each in (masters.values() if isinstance(masters, Mapping) else masters)
    ):
        raise InvalidRequest("masters= takes tensors, by name or in the order of the trainable parameters.")
    if not isinstance(masters, Mapping):
        names = [name for name, parameter in parameters.items() if parameter.requires_grad]
        if len(names) != len(masters):
            raise InvalidRequest(f"There are {len(masters):,} masters for {len(names):,} trainable parameters: pass them by name.")
        masters = dict(zip(names, masters, strict=True))
    named = {watched_values.plain_name(name): master for name, master in masters.items()}
    for name, master in named.items():
        if name not in parameters or master.shape != parameters[name].shape:
            raise InvalidRequest(f"The model has no parameter {quoted(name)} of the shape {tuple(master.shape)} of its master.")
    return named


def recognised_masters(model: nn.Module, optimizers: Sequence[Any]) -> dict[str, Tensor]:
    """Return the masters that optimizers step, by the name of their parameter; none if they cannot be matched with certainty.

    They match if they are, in order, copies in a finer format of the trainable parameters that no optimizer steps.
    """
    stepped = {id(tensor): tensor for optimizer in optimizers for tensor in watched_values.stepped(optimizer)}
    free = {name: each for name, each in watched_values.parameters(model) if each.requires_grad and id(each) not in stepped}
    own = {id(each) for each in model.parameters()}
    others = [tensor for key, tensor in stepped.items() if key not in own]
    pairs = list(zip(free.values(), others, strict=False))
    fits = len(free) == len(others) and all(
        a.shape == b.shape and a.device == b.device and a.dtype.itemsize < b.dtype.itemsize and torch.equal(a, b.detach().to(a.dtype))
        for a, b in pairs
    )
    return dict(zip(free, others, strict=True)) if fits else {}


def in_state(parameter: Tensor, optimizers: Sequence[Any]) -> Tensor | None:
    """Return the master in an optimizer's state, named ``master_param`` or similarly; None if there is none."""
    for optimizer in optimizers:
        for name, value in getattr(optimizer, "state", {}).get(parameter, {}).items():
            if "master" in str(name) and isinstance(value, Tensor) and value.shape == parameter.shape and value.is_floating_point():
                return value
    return None
