"""Runs models larger than memory: embeddings, final norm and head are loaded, decoder layers are read from the weight files one at a time.

A layer is read for each pass through it, and dropped after the pass: only an autograd graph may hold its weights longer, until that
layer's backward pass.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from analyzers.checkpoints import RangeFile
from analyzers.checkpoints.stated_dtype import TORCH_NAMES
from analyzers.checkpoints.tensor import Tensor as Stored
from analyzers.language_models.ffn import decoder_layers
from analyzers.language_models.loaded_dtypes import compute_buffers

_DTYPES = {dtype: getattr(torch, name) for dtype, name in TORCH_NAMES.items()}


class StoredTensors(Mapping[str, Tensor]):
    """Tensors of a model in safetensors files, by their names in the model; each access reads a tensor anew.

    Positioned reads, not safetensors' own, which map the whole file: mappings count towards the limit of a process's address space.
    places: name in the model -> file, and the tensor in it.
    """

    def __init__(self, places: Mapping[str, tuple[RangeFile, Stored]]) -> None:
        self._places = places

    def __getitem__(self, name: str) -> Tensor:
        file, stored = self._places[name]
        value = torch.empty(stored.shape, dtype=_DTYPES[stored.dtype])
        file.read_into(stored.offset, memoryview(cast(Any, value.reshape(-1).view(torch.uint8).numpy())))
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def stored_tensors(outline: nn.Module, tensors: Iterable[Stored], dtype: torch.dtype) -> dict[str, Stored] | None:
    """Return name in the model -> tensor in the files, for all parameters and the stored buffers.

    None if transformers converts weights as it loads them (merged experts, renamed tensors, parts kept in float32, tied weights stored
    twice): such a model cannot be read layer by layer.
    """
    model, by_name = cast(Any, outline), {tensor.name: tensor for tensor in tensors if tensor.stored_dtype in _DTYPES}
    if dtype != torch.float32 and (model._keep_in_fp32_modules or model._keep_in_fp32_modules_strict):
        return None
    prefix = f"{model.base_model_prefix}."
    found: dict[str, Stored] = {}
    for name, value in model.state_dict().items():
        named = (by_name.get(each) for each in (name, name.removeprefix(prefix), prefix + name))
        stored = next((each for each in named if each is not None and each.shape == tuple(value.shape)), None)
        if stored is not None:
            found[name] = stored
    parameters = {name for name, _ in model.named_parameters()}
    tied = {name for name, _ in model.named_parameters(remove_duplicate=False)} - parameters
    return found if parameters <= found.keys() and not tied & found.keys() else None


def read_layer_by_layer(model: PreTrainedModel, weights: Mapping[str, Tensor], device: str) -> nn.Module:
    """Load a model without weights onto ``device``, except for the parameters of its decoder layers, which each pass reads.

    model: on the meta device, in the dtype that its parameters are to have. weights: name in the model -> tensor.
    """
    from accelerate.hooks import AlignDevicesHook, add_hook_to_module
    from accelerate.utils import PrefixedDataset, set_module_tensor_to_device

    model.requires_grad_(False)
    compute_buffers(model)
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
