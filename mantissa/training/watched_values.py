"""Selects the watched values of a model: the part of each parameter that this process holds, whole or a seeded sample of blocks."""

import math
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch import distributed as dist

from analyzers.checkpoints.tensor_names import roles
from analyzers.core.errors import InvalidRequest

BLOCK = 256
"""Number of consecutive values in a block of the sample."""
WHOLE = 4096
"""Most values of a parameter that is watched whole; 1-D parameters (norms and biases) are always watched whole."""
_ADAPTER = re.compile(r"\.lora_(?:(?:embedding_)?(?P<matrix>[AB])|magnitude_vector)(?:\.|$)")
_WRAPPERS = ("module.", "_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")


class WatchedPart(NamedTuple):
    """The part of a parameter that this process holds. source: the parameter, or the master weights that the optimizer steps in its place.
    local: (n,) the values, in memory order, sharing the source's memory; sharded: whether other processes hold the rest.
    """

    source: Tensor
    local: Tensor
    sharded: bool
    trainable: bool


def parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the floating-point parameters with their names without prefixes of wrappers; tied parameters once."""
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point():
            yield plain_name(name), parameter


@lru_cache(1 << 16)
def plain_name(name: str) -> str:
    """Remove the prefixes of wrappers from a name."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "") if wrapper != "module." else name.removeprefix(wrapper)
    return name


def stepped(optimizer: Any) -> Iterator[Tensor]:
    """Yield the tensors that an optimizer steps."""
    for group in getattr(optimizer, "param_groups", ()):
        yield from group["params"]


def role(name: str) -> str:
    """Return the role of a parameter: ``lora_A``, ``lora_B`` or ``lora_magnitude`` of an adapter, else that of `roles.role`."""
    adapter = _ADAPTER.search(name)
    return f"lora_{adapter['matrix'] or 'magnitude'}" if adapter else roles.role(name)


def watched_part(name: str, parameter: nn.Parameter, in_fsdp: bool) -> WatchedPart:
    """Return the part of a parameter that this process holds. in_fsdp: whether FullyShardedDataParallel wraps the model.

    Raises InvalidRequest on the meta device.
    """
    if parameter.is_meta:
        raise InvalidRequest(f'"{name}" is on the meta device: attach the monitor when the model is loaded.')
    partition = vars(parameter).get("ds_tensor")  # DeepSpeed stage 3 pads parameters to equal parts
    if partition is not None:
        whole, rank = int(cast(Any, parameter).ds_numel), dist.get_rank()
        mine = max(0, min(partition.numel(), whole - rank * partition.numel()))
        return WatchedPart(parameter, partition.detach().reshape(-1)[:mine], True, parameter.requires_grad)
    if type(parameter) is not nn.Parameter and hasattr(parameter, "to_local"):  # a DTensor of fully_shard or tensor parallelism
        sharded = any(placement.is_shard() for placement in cast(Any, parameter).placements)
        return WatchedPart(parameter, parameter.to_local().detach().reshape(-1), sharded, parameter.requires_grad)
    if in_fsdp and name.endswith("_flat_param"):
        raise InvalidRequest("FSDP has joined the parameters of this model under one name: wrap it with use_orig_params=True.")
    return WatchedPart(parameter, parameter.detach().reshape(-1), in_fsdp, parameter.requires_grad)


def is_fsdp(model: nn.Module) -> bool:
    """Return whether FullyShardedDataParallel wraps a part of the model, whose parameters are then this process's shards."""
    if not dist.is_available():
        return False
    from torch.distributed.fsdp import FullyShardedDataParallel

    return any(isinstance(module, FullyShardedDataParallel) for module in model.modules())


def rows(local: Tensor, whole: bool, share: float, generator: torch.Generator) -> Tensor | None:
    """Choose the blocks to watch, as sorted indices into rows of `BLOCK` values; None for every value."""
    blocks = local.numel() // BLOCK
    count = max(1, math.ceil(blocks * share))
    if whole or local.numel() <= WHOLE or count >= blocks:
        return None
    # One block in each of `count` equal parts: blocks are distinct without a permutation of all of them in memory.
    edges = torch.linspace(0, blocks, count + 1, dtype=torch.float64).long()
    within = torch.rand(count, generator=generator, dtype=torch.float64)
    return (edges[:-1] + (within * (edges[1:] - edges[:-1])).long()).to(local.device)


def watched_values(local: Tensor, chosen: Tensor | None) -> Tensor:
    """Return (n,) the current watched values: a view, or a copy of the chosen blocks."""
    if chosen is None:
        return local
    whole = local if local.numel() % BLOCK == 0 else local[: local.numel() // BLOCK * BLOCK]
    return whole.view(-1, BLOCK).index_select(0, chosen).view(-1)
