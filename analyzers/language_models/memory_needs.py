"""Computes the limits of a run: memory required and available, placement of layers on GPUs. All sizes in bytes."""

import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, cast

import psutil
import torch
from torch import nn

from analyzers.core.errors import ModelTooLarge
from analyzers.core.formatting import size
from analyzers.language_models.ffn import FFN, decoder_layers, ffn_layers, text_config
from analyzers.language_models.lm_head import logits_bytes
from analyzers.language_models.stages import micro_batches, padded_tokens

# The system's free memory ignores a container's limit: these files hold the limit and the usage.
_CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)

# Values that a layer saves per token, as multiples of the hidden width, of the FFN width and of heads times length.
_HIDDEN, _FFN, _SCORES = 10, 4, 2
# Linear attention and state-space models compute in float32 on chunks: values saved per head and token, as multiples of the chunk length,
# of the key and value widths, and of the state size (linear attention has one state per chunk).
_CHUNK, _LINEAR_CHUNK = 5, 64
_WIDE = torch.float32.itemsize
_HEAD, _STATES = 8, 4


def weight_bytes(model: nn.Module, dtype: torch.dtype) -> int:
    """Return the size of a model's or outline's weights and buffers when loaded as ``dtype``; tied weights count once."""
    buffers = sum(buffer.numel() * buffer.itemsize for buffer in model.buffers())
    return sum(parameter.numel() for parameter in model.parameters()) * dtype.itemsize + buffers


def offloaded_bytes(model: nn.Module, dtype: torch.dtype) -> int:
    """Return the weights in memory at a time if layers are read one by one: everything outside the layers, and the largest layer."""
    layers = [sum(parameter.numel() for parameter in layer.parameters()) * dtype.itemsize for layer in decoder_layers(model)]
    return weight_bytes(model, dtype) - sum(layers) + max(layers)


def activation_bytes(model: nn.Module, dtype: torch.dtype, lengths: Sequence[int], runs: int = 1) -> int:
    """Bound the peak memory of passes over samples of these lengths, weights excluded, from per-token counts.

    Each of ``runs`` passes side by side keeps the hidden states between layers; one layer at a time is recomputed, with its gradients, for
    one micro-batch: per token 10 hidden widths, 4 FFN widths (8 for each selected expert) and, with eager attention, 2 scores per head and
    attended token, more in 16 bits, twice; and the replacements for attention that some layers have.
    """
    config, ffns = text_config(model), ffn_layers(model)
    layers, hidden = 1 + max(ffn.layer for ffn in ffns), ffns[0].hidden
    chosen = cast(int, getattr(config, "num_experts_per_tok", 1) or 1)
    narrow = 2 if dtype.itemsize < _WIDE else 1  # norms, and the softmax of eager attention, are computed in float32
    width = max(sum(ffn.width * (2 * chosen if ffn.expert == 0 else 1) for ffn in group) for group in _by_layer(ffns))
    mixed = any(isinstance(module, nn.Conv1d) for block in decoder_layers(model) for module in block.modules())
    most = 0
    for part in micro_batches(lengths):
        samples, length = len(part), lengths[part[0]]
        layer = narrow * _HIDDEN * hidden + _FFN * width
        if config._attn_implementation == "eager":
            layer += narrow * config.num_attention_heads * length * _SCORES
        most = max(most, 2 * samples * length * layer * dtype.itemsize + (2 * _mixing_bytes(config, samples, length) if mixed else 0))
    saved = runs * padded_tokens(lengths) * (layers + 3) * hidden * dtype.itemsize
    return saved + most + logits_bytes(model, dtype)


def _by_layer(ffns: Sequence[FFN]) -> list[list[FFN]]:
    """Group FFNs by layer, with one of the experts for all."""
    layers: dict[int, list[FFN]] = {}
    for ffn in ffns:
        if not ffn.expert:
            layers.setdefault(ffn.layer, []).append(ffn)
    return list(layers.values())


def _mixing_bytes(config: Any, samples: int, length: int) -> int:
    """Return the memory of a linear-attention or state-space layer, tokens padded to whole chunks, with its temporary memory."""
    if hasattr(config, "linear_num_value_heads"):
        heads, keys, values = config.linear_num_value_heads, config.linear_key_head_dim, config.linear_value_head_dim
        chunk = _LINEAR_CHUNK
        saved = heads * (_CHUNK * chunk + _HEAD * (keys + values) + _STATES * keys * values // chunk)
    elif hasattr(config, "mamba_n_heads"):
        heads, width, state = config.mamba_n_heads, config.mamba_d_head, config.mamba_d_state
        chunk = config.mamba_chunk_size
        saved = heads * (_CHUNK * chunk + _HEAD * (width + state) + 2 * width * state + 2 * chunk * max(width, state))
    else:
        return 0
    return int(samples * -(-length // chunk) * chunk * saved * _WIDE)


def available_bytes(device: Literal["cpu", "cuda"]) -> list[int]:
    """Return the free memory of each CUDA device, or (as a list of one) of the host.

    The host's memory is limited by the system, the container or the process's own address space.
    """
    if device == "cuda":
        return [torch.cuda.mem_get_info(number)[0] for number in range(torch.cuda.device_count())]
    host = psutil.virtual_memory().available
    return [min(host, _address_space(), *(_left(Path(most), Path(taken)) for most, taken in _CGROUPS))]


def _address_space() -> int:
    """Return the bytes that this process may still allocate under its limit (`ulimit -v`); a very large number without a limit."""
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    return 1 << 62 if most == resource.RLIM_INFINITY else max(0, most - psutil.Process().memory_info().vms)


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
