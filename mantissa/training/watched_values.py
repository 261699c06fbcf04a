"""Selects the watched values of a model: each parameter, or the master weights in its place, whole or a seeded sample of blocks."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from analyzers.checkpoints import quoted
from analyzers.checkpoints.tensor_names import roles
from analyzers.core.errors import InvalidRequest

BLOCK = 256
"""Number of consecutive values in a block of the sample."""
WHOLE = 4096
"""Most values of a parameter that is watched whole; 1-D parameters (norms and biases) are always watched whole."""
_ADAPTER = re.compile(r"\.lora_(?:(?:embedding_)?(?P<matrix>[AB])|magnitude_vector)(?:\.|$)")
_WRAPPERS = ("module.", "_orig_mod.", "_checkpoint_wrapped_module.")


class HeldPart(NamedTuple):
    """A parameter. source: what the optimizer steps, itself or its master; local: (n,) its values, or those of the master in its state."""

    source: Tensor
    local: Tensor
    trainable: bool


def parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the floating-point parameters with their names without prefixes of wrappers; tied parameters once.

    Raises InvalidRequest for parameters without values in this process: on the meta device, or sharded over several processes.
    """
    for name, parameter in model.named_parameters():
        if not parameter.is_floating_point():
            continue
        if parameter.is_meta:
            raise InvalidRequest(f"{quoted(name)} is on the meta device: attach the monitor when the model is loaded.")
        # of fully_shard and tensor parallelism, of DeepSpeed stage 3, and of FullyShardedDataParallel
        if hasattr(parameter, "to_local") or "ds_tensor" in vars(parameter) or "_fsdp_wrapped_module." in name or "_flat_param" in name:
            raise InvalidRequest(f"The values of {quoted(name)} are sharded over several processes, which a monitor cannot watch.")
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


def given_masters(masters: Mapping[str, Tensor] | Sequence[Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Return the masters by the name of their parameter. Raises InvalidRequest if names or shapes do not fit.

    masters: tensors by name, or of all trainable parameters in the order of ``model.parameters()``.
    """
    known = dict(parameters(model))
    if not isinstance(masters, Mapping):
        names = [name for name, parameter in known.items() if parameter.requires_grad]
        if not isinstance(masters, Sequence) or len(names) != len(masters):
            raise InvalidRequest(f"masters= takes a tensor for each of the {len(names):,} trainable parameters, or tensors by name.")
        masters = dict(zip(names, masters, strict=True))
    named = {plain_name(name): master for name, master in masters.items()}
    for name, master in named.items():
        if name not in known or not isinstance(master, Tensor) or master.shape != known[name].shape:
            raise InvalidRequest(f"The master of {quoted(name)} is no tensor of the shape of a parameter with this name.")
    return named


def master_in_state(parameter: Tensor, optimizers: Sequence[Any]) -> Tensor | None:
    """Return the master in an optimizer's state, named ``master_param`` or similarly; None if there is none."""
    for optimizer in optimizers:
        for name, value in getattr(optimizer, "state", {}).get(parameter, {}).items():
            if "master" in str(name) and isinstance(value, Tensor) and value.shape == parameter.shape and value.is_floating_point():
                return value
    return None


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
