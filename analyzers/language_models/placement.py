"""Placement of a model's layers on CUDA devices."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import nn

from analyzers.errors import ModelTooLarge
from analyzers.formatting import size


def place(model: nn.Module, dtype: torch.dtype, needs: int, free: Sequence[int]) -> dict[str, int]:
    """Map module names to device indices: the first device that holds the whole model, otherwise split by accelerate without splitting
    layers.

    model: the outline; needs: total bytes while it runs; free: of each device, in bytes.
    Raises ModelTooLarge if part of it would have to be offloaded: offloaded weights have no gradients.
    """
    for number, bytes_free in enumerate(free):
        if needs <= bytes_free:
            return {"": number}
    from accelerate import infer_auto_device_map

    weights = sum(parameter.numel() for parameter in model.parameters()) * dtype.itemsize
    share = weights / max(1, needs)  # share of a device for weights; saved activations are on the same device as their layers
    most: dict[Any, int] = {number: int(bytes_free * share) for number, bytes_free in enumerate(free)}
    kept_whole = list(cast(Any, model)._no_split_modules or ())
    places = infer_auto_device_map(model, max_memory={**most, "cpu": 0}, no_split_module_classes=kept_whole, dtype=dtype)
    if any(not isinstance(place, int) for place in places.values()):
        raise too_large(needs, sum(free))
    return cast(dict[str, int], dict(places))


def too_large(needs: int, has: int) -> ModelTooLarge:
    """The sentence stating by how much the model exceeds memory."""
    return ModelTooLarge(
        f"The model needs {size(needs)} of memory to run and this machine has {size(has)}: "
        "take a smaller model, fewer or shorter samples, or a narrower --dtype."
    )
