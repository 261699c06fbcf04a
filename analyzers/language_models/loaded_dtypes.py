"""Predicts the dtypes of a model loaded with ``from_pretrained(dtype=...)``, which keeps some parameters and buffers in float32.

transformers itself determines them, on a model without weights on the meta device.
"""

import re
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

_LAYER = re.compile(r".*\.\d+\.")


@dataclass(frozen=True, eq=False, slots=True)
class LoadedDtypes:
    """The tensors of a loaded model.

    dtypes: of each parameter and stored buffer, by name; computed: buffers that are not stored, on the CPU.
    """

    dtypes: dict[str, torch.dtype]
    computed: dict[str, Tensor]

    def in_fp32(self) -> list[str]:
        """Return the names of parameters and stored buffers in float32, each once, without the prefix of their layer."""
        return sorted({_LAYER.sub("", name) for name, dtype in self.dtypes.items() if dtype == torch.float32})


def loaded_dtypes(model: nn.Module, dtype: torch.dtype) -> LoadedDtypes:
    """Return the dtypes and computed buffers that ``from_pretrained(dtype=dtype)`` gives a model of transformers; reads no weights."""
    whole, stored = cast(Any, model), model.state_dict()
    named = {name: value for name, value in (*model.named_parameters(), *model.named_buffers()) if name in stored}
    shapes = {name: torch.empty(value.shape, dtype=value.dtype, device="meta") for name, value in named.items()}
    with torch.random.fork_rng(devices=[]):
        weightless = type(whole).from_pretrained(None, config=whole.config, state_dict=shapes, dtype=dtype, device_map="meta")
        with torch.device("meta"):
            empty = type(whole)._from_config(deepcopy(whole.config), dtype=dtype)
        compute_buffers(empty)
    dtypes = {name: value.dtype for name, value in weightless.state_dict().items()}
    return LoadedDtypes(dtypes, {name: value for name, value in empty.named_buffers() if name not in stored})


def compute_buffers(model: nn.Module) -> None:
    """Compute the initial values of a meta-device model's buffers on the CPU; its parameters stay on the meta device."""
    for module in model.modules():
        for name, value in module.named_buffers(recurse=False):
            setattr(module, name, torch.empty_like(value, device="cpu"))
    with torch.random.fork_rng(devices=[]):  # some families draw parameters on the CPU first
        cast(Any, model).initialize_weights()
