"""Estimates, with slack, the memory that a run needs, and finds what there is. All sizes in bytes."""

import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, cast

import psutil
import torch
from torch import nn

from analyzers.core.errors import ModelTooLarge
from analyzers.core.formatting import size
from analyzers.language_models.ffn import decoder_layers, ffn_layers, text_config
from analyzers.language_models.lm_head import logits_bytes
from analyzers.language_models.stages import micro_batches, padded_tokens

# The system's free memory ignores a container's limit: these files hold the limit and the usage.
_CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
# A layer that is recomputed saves the inputs and outputs of its maps, and about as much between them; then come its gradients.
_SLACK = 4
_SCORES = 4  # values per head and attended token that eager attention saves


def weight_bytes(model: nn.Module, dtype: torch.dtype) -> int:
    """Return the size of a model's or outline's weights and buffers when loaded as ``dtype``; tied weights count once."""
    buffers = sum(buffer.numel() * buffer.itemsize for buffer in model.buffers())
    return sum(parameter.numel() for parameter in model.parameters()) * dtype.itemsize + buffers


def offloaded_bytes(model: nn.Module, dtype: torch.dtype) -> int:
    """Return the weights in memory at a time if layers are read one by one: everything outside the layers, and the largest layer."""
    layers = [sum(parameter.numel() for parameter in layer.parameters()) * dtype.itemsize for layer in decoder_layers(model)]
    return weight_bytes(model, dtype) - sum(layers) + max(layers)


def activation_bytes(model: nn.Module, dtype: torch.dtype, lengths: Sequence[int], runs: int = 1) -> int:
    """Estimate the peak memory of passes over samples of these lengths, weights excluded.

    Each of ``runs`` passes side by side keeps the hidden states between layers. One layer at a time is recomputed for one micro-batch: per
    token it takes `_SLACK` times the inputs and outputs of its linear maps, in float32, and the scores of eager attention.
    """
    config, layers = text_config(model), decoder_layers(model)
    chosen = cast(int, getattr(config, "num_experts_per_tok", 1) or 1)
    shapes = [[parameter.shape for parameter in layer.parameters() if parameter.dim() > 1] for layer in layers]
    values = max(sum(sum(shape[-2:]) * (chosen if len(shape) > 2 else 1) for shape in of_layer) for of_layer in shapes)
    most = 0
    for part in micro_batches(lengths):
        length = lengths[part[0]]
        scores = _SCORES * config.num_attention_heads * length if config._attn_implementation == "eager" else 0
        most = max(most, len(part) * length * torch.float32.itemsize * (_SLACK * values + scores))
    hidden = runs * padded_tokens(lengths) * (len(layers) + 3) * ffn_layers(model)[0].hidden * dtype.itemsize
    return hidden + most + logits_bytes(model, dtype)


def available_bytes(device: Literal["cpu", "cuda"]) -> list[int]:
    """Return the free memory of each CUDA device, or (as a list of one) of the host.

    The host's memory is limited by the system, the container or the process's own address space.
    """
    if device == "cuda":
        return [torch.cuda.mem_get_info(number)[0] for number in range(torch.cuda.device_count())]
    left = [psutil.virtual_memory().available, *(_left(Path(most), Path(taken)) for most, taken in _CGROUPS)]
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    return [min(left) if most == resource.RLIM_INFINITY else min(*left, max(0, most - psutil.Process().memory_info().vms))]


def _left(most: Path, taken: Path) -> int:
    """Return the remaining memory of a control group; a very large number if there is no limit or no control group."""
    try:
        return max(0, int(most.read_text()) - int(taken.read_text()))
    except (OSError, ValueError):  # no such file, or "max"
        return 1 << 62


def place(model: nn.Module, dtype: torch.dtype, needs: int, free: Sequence[int]) -> dict[str, int]:
    """Map module names to device indices: the first device that holds the whole model, else a split by accelerate between layers.

    model: the outline; needs: total bytes while it runs; free: of each device, in bytes.
    Raises ModelTooLarge if part of it would have to be offloaded: offloaded weights have no gradients.
    """
    for number, bytes_free in enumerate(free):
        if needs <= bytes_free:
            return {"": number}
    if len(free) == 1:
        raise too_large(needs, free[0])
    from accelerate import infer_auto_device_map

    weights = sum(parameter.numel() for parameter in model.parameters()) * dtype.itemsize
    share = weights / max(1, needs)  # share of a device for weights; activations are saved on the device of their layer
    most: dict[Any, int] = {number: int(bytes_free * share) for number, bytes_free in enumerate(free)}
    kept_whole = list(cast(Any, model)._no_split_modules or ())
    places = infer_auto_device_map(model, max_memory={**most, "cpu": 0}, no_split_module_classes=kept_whole, dtype=dtype)
    if any(not isinstance(place, int) for place in places.values()):
        raise too_large(needs, sum(free))
    return cast(dict[str, int], dict(places))


def too_large(needs: int, has: int) -> ModelTooLarge:
    """Return the error that states by how much the model exceeds memory."""
    return ModelTooLarge(
        f"The model needs {size(needs)} of memory to run and this machine has {size(has)}: "
        "choose a smaller model, fewer or shorter samples, or a narrower --dtype."
    )
