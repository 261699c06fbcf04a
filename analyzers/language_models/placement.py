"""On which CUDA devices the layers of a model go."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import nn

from analyzers.errors import ModelTooLarge
from analyzers.formatting import size


def place(model: nn.Module, dtype: torch.dtype, needs: int, free: Sequence[int]) -> dict[str, int]:
    """Module name -> number of its device: all on the first of them that holds it, else spread by accelerate, layers in one piece.

    model: the outline; needs: bytes that all of it takes while it runs; free: of each device, in bytes.
    Raises ModelTooLarge where some of it would have to be kept elsewhere: weights that come and go have no gradients.
    """
    for number, bytes_free in enumerate(free):
        if needs <= bytes_free:
            return {"": number}
    from accelerate import infer_auto_device_map

    weights = sum(parameter.numel() for parameter in model.parameters()) * dtype.itemsize
    share = weights / max(1, needs)  # of a device for weights; what is kept of the tokens is with the layers
    most: dict[Any, int] = {number: int(bytes_free * share) for number, bytes_free in enumerate(free)}
    kept_whole = list(cast(Any, model)._no_split_modules or ())
    places = infer_auto_device_map(model, max_memory={**most, "cpu": 0}, no_split_module_classes=kept_whole, dtype=dtype)
    if any(not isinstance(place, int) for place in places.values()):
        raise too_large(needs, sum(free))
    return cast(dict[str, int], dict(places))


def too_large(needs: int, has: int) -> ModelTooLarge:
    """The sentence that says by how much."""
    return ModelTooLarge(
        f"The model needs {size(needs)} of memory to run and this machine has {size(has)}: "
        "take a smaller model, fewer or shorter samples, or a narrower --dtype."
    )
