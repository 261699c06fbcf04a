"""Finds master weights: copies in a finer format that an optimizer steps in place of a model's parameters."""

from collections.abc import Mapping, Sequence
from typing import Any

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


def in_state(parameter: Tensor, optimizers: Sequence[Any]) -> Tensor | None:
    """Return the master in an optimizer's state, named ``master_param`` or similarly; None if there is none."""
    for optimizer in optimizers:
        for name, value in getattr(optimizer, "state", {}).get(parameter, {}).items():
            if "master" in str(name) and isinstance(value, Tensor) and value.shape == parameter.shape and value.is_floating_point():
                return value
    return None
