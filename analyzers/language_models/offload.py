"""Runs models larger than memory: embeddings, final norm and head are loaded, decoder layers are read from the weight files one at a time.

A layer is read for each pass through it, and dropped after the pass: only an autograd graph may hold its weights longer, until that
layer's backward pass.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

from analyzers.checkpoints import RangeFile
from analyzers.checkpoints.stated_dtype import TORCH_NAMES
from analyzers.checkpoints.tensor import Tensor as Stored
from analyzers.language_models.ffn import decoder_layers
from analyzers.language_models.loaded_dtypes import compute_buffers

_DTYPES = {dtype: getattr(torch, name) for dtype, name in TORCH_NAMES.items()}


@dataclass(frozen=True, slots=True)
class Source:
    """The stored tensors from which transformers makes tensors of a model, each with the pattern of ``converter`` that its name matches.

    target: the name by which transformers converts them, that of a tensor of the model; dtype: of that tensor. converter: None for a single
    tensor that is at most renamed.
    """

    target: str
    dtype: torch.dtype
    converter: WeightConverter | None
    stored: list[tuple[str, Stored]]

    def made(self, read: Callable[[Stored], Tensor], model: Any) -> dict[str, Tensor]:
        """Return the tensors of the model by name. read: reads a stored tensor."""
        if self.converter is None:
            return {self.target: read(self.stored[0][1])}
        converter = deepcopy(self.converter)  # it collects its tensors
        for pattern, stored in self.stored:
            converter.add_tensor(self.target, stored.name, pattern, cast(Any, lambda stored=stored: read(stored).to(self.dtype)))
        results: dict[str, Any] = converter.convert(self.target, model=model, config=model.config)
        return {name: value[0] if isinstance(value, list) else value for name, value in results.items()}


class StoredTensors(Mapping[str, Tensor]):
    """Tensors of a model in safetensors files, by their names in the model; each access reads and converts a tensor anew.

    Positioned reads, not safetensors' own, which map the whole file: mappings count towards the limit of a process's address space.
    """

    def __init__(self, sources: Mapping[str, Source], files: Sequence[RangeFile], model: nn.Module) -> None:
        self._sources = sources
        self._files = files
        self._model = model

    def __getitem__(self, name: str) -> Tensor:
        return self._sources[name].made(self._read, self._model)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)

    def _read(self, stored: Stored) -> Tensor:
        value = torch.empty(stored.shape, dtype=_DTYPES[stored.dtype])
        self._files[stored.file].read_into(stored.offset, memoryview(cast(Any, value.reshape(-1).view(torch.uint8).numpy())))
        return value


def stored_tensors(outline: nn.Module, tensors: Iterable[Stored], dtype: torch.dtype) -> dict[str, Source] | None:
    """Return name in the model -> source in the files, for all parameters and the stored buffers.

    None if the model cannot be read layer by layer: parts that transformers keeps in float32, and tied weights that are stored twice.
    """
    model, state = cast(Any, outline), outline.state_dict()
    if dtype != torch.float32 and (model._keep_in_fp32_modules or model._keep_in_fp32_modules_strict):
        return None
    sources: dict[str, Source] = {}
    by_name = {tensor.name: tensor for tensor in tensors if tensor.stored_dtype in _DTYPES}
    for stored, name, pattern, converter in names_in_model(model, sorted(by_name, key=dot_natural_key)):
        if name in state:
            sources.setdefault(name, Source(name, dtype, converter, [])).stored.append((pattern, by_name[stored]))
    found: dict[str, Source] = {}
    for source in sources.values():
        made = source.made(lambda stored: torch.empty(stored.shape, device="meta"), model)
        found |= {name: source for name, value in made.items() if name in state and value.shape == state[name].shape}
    parameters = {name for name, _ in model.named_parameters()}
    tied = {name for name, _ in model.named_parameters(remove_duplicate=False)} - parameters
    return found if parameters <= found.keys() and not tied & found.keys() else None


def names_in_model(model: Any, stored: Iterable[str]) -> Iterator[tuple[str, str, str, WeightConverter | None]]:
    """Yield each stored name with the name that transformers gives it, and the converter of such tensors with its pattern."""
    mapping, state = get_model_conversion_mapping(model), model.state_dict()
    renamings = [each for each in mapping if isinstance(each, WeightRenaming)]
    converters = [each for each in mapping if isinstance(each, WeightConverter)]
    of_pattern = {pattern: each for each in converters for pattern in each.source_patterns}
    for name in stored:
        own, pattern = rename_source_key(name, renamings, converters, model.base_model_prefix, state)
        if own not in state and name in state:  # as transformers does
            own, pattern = name, None
        yield name, own, pattern or "", None if pattern is None else of_pattern[pattern]


def converting_bytes(outline: nn.Module, sources: Mapping[str, Source], dtype: torch.dtype) -> int:
    """Bound the bytes that converting a tensor takes in addition to it: its parts, and what is made of them on the way."""
    state = outline.state_dict()
    return 2 * dtype.itemsize * max((state[name].numel() for name, source in sources.items() if source.converter is not None), default=0)


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
