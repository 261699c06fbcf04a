"""Models larger than their memory: embeddings, final norm and head are loaded, decoder layers are read from the weight files one at a time.

A layer is read for each pass through it, and dropped after the pass: only an autograd graph may hold its weights longer, until that
layer's backward pass. accelerate's hooks do this around a layer's forward; `align_module_device` does it around a block of code.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from accelerate.utils import PrefixedDataset, set_module_tensor_to_device
from safetensors import safe_open
from torch import Tensor, nn

from analyzers.language_models.ffn import decoder_layers


class StoredTensors(Mapping[str, Tensor]):
    """Tensors of a model in safetensors files, by their names in the model; each access reads one anew.

    Positioned reads, not a mapping of the file: a mapped file counts towards the limit of a process's address space.
    places: name in the model -> file and name in it.
    """

    def __init__(self, places: Mapping[str, tuple[Path, str]]) -> None:
        self._places = places

    def __getitem__(self, name: str) -> Tensor:
        path, stored = self._places[name]
        with safe_open(path, framework="pt", backend="pread") as file:
            return cast(Tensor, file.get_tensor(stored))

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def stored_names(outline: nn.Module, stored: Mapping[str, tuple[int, ...]], dtype: torch.dtype) -> dict[str, str] | None:
    """Name in the model -> name in the files, for all parameters and the stored buffers. stored: name -> shape.

    None where transformers converts weights as it loads them (merged experts, renamed tensors, parts kept in float32, tied weights stored
    twice): such a model cannot be read layer by layer.
    """
    model = cast(Any, outline)
    if dtype != torch.float32 and (model._keep_in_fp32_modules or model._keep_in_fp32_modules_strict):
        return None
    prefix = f"{model.base_model_prefix}."
    names: dict[str, str] = {}
    for name, value in model.state_dict().items():
        known = next((each for each in (name, name.removeprefix(prefix), prefix + name) if stored.get(each) == tuple(value.shape)), None)
        if known is not None:
            names[name] = known
    parameters = {name for name, _ in model.named_parameters()}
    tied = {name for name, _ in model.named_parameters(remove_duplicate=False)} - parameters
    return names if parameters <= names.keys() and not tied & names.keys() else None


def read_layer_by_layer(model: nn.Module, weights: Mapping[str, Tensor], device: str) -> nn.Module:
    """Load a model without weights onto ``device``, except for the parameters of its decoder layers, which each pass reads.

    model: parameters on the meta device in the dtype that they are to have, buffers computed. weights: name in the model -> tensor.
    """
    model.requires_grad_(False)
    layers = {name: module for name, module in model.named_modules() if module in set(decoder_layers(model))}
    within = {f"{layer}.{name}" for layer, module in layers.items() for name, _ in module.named_parameters()}
    kinds = {name: value.dtype for name, value in model.state_dict().items()}
    outside = {name: weights[name].to(device, kinds[name]) for name in weights if name not in within}
    model.load_state_dict(outside, strict=False, assign=True)
    cast(Any, model).tie_weights()
    for name, _ in list(model.named_buffers()):
        set_module_tensor_to_device(model, name, device)
    for name, layer in layers.items():
        reader = AlignDevicesHook(device, offload=True, weights_map=PrefixedDataset(weights, f"{name}."), place_submodules=True)
        add_hook_to_module(layer, reader)
    return model.requires_grad_(False)
