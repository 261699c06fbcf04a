"""The parts of a causal language model whose precision can be set: layers, norms, routers, attention, linear maps, head."""

from dataclasses import dataclass, field
from typing import Any, Literal, cast

import torch
from torch import nn

from analyzers.language_models.ffn import attention_projections, decoder_layers, ffn_layers
from analyzers.language_models.lm_head import check_logits
from analyzers.language_models.loaded_dtypes import LoadedDtypes, is_matrix, loaded_dtypes, without_peft

Role = Literal["norm", "router", "map", "head", "other"]


@dataclass(frozen=True, eq=False, slots=True)
class AttentionParts:
    """The attention of a layer. projections: the modules that compute queries, keys and values."""

    module: nn.Module
    projections: frozenset[nn.Module]


@dataclass(frozen=True, eq=False, slots=True)
class ModelParts:
    """The modules of a model by their part in it.

    decoder: the module that calls the layers; head: from the decoder's output to logits; names: of parameters, by module and attribute, but
    for the matrices of an adapter beside the model; roles: of every module of decoder and head; attentions: one per layer, None for a layer
    without attention; results: the length of the tuple that a layer returns, None for a tensor; inside: the modules of each layer by name,
    the layer itself first; experts: the module that holds the experts of a layer, by layer; outside: the decoder's modules that are in no
    layer (embeddings, final norm, projections).
    """

    model: nn.Module
    decoder: nn.Module
    layers: tuple[nn.Module, ...]
    head: nn.Module
    names: dict[tuple[nn.Module, str], str]
    roles: dict[nn.Module, Role]
    attentions: tuple[AttentionParts | None, ...]
    results: tuple[int | None, ...]
    inside: tuple[dict[str, nn.Module], ...]
    experts: dict[int, nn.Module]
    outside: tuple[nn.Module, ...]
    _loaded: dict[torch.dtype, LoadedDtypes] = field(default_factory=dict)

    @classmethod
    def of(cls, model: nn.Module) -> "ModelParts":
        """Runs the model once, on two tokens. Raises UnknownArchitecture for an unknown family."""
        whole = cast(Any, model)
        layers = tuple(decoder_layers(model))
        by_layer = {
            attention.layer: AttentionParts(attention.module, frozenset(map.module for name, map in attention.maps.items() if name != "o"))
            for attention in attention_projections(model)
        }
        attentions = tuple(by_layer.get(layer) for layer in range(len(layers)))
        first = {parameter: name for name, parameter in model.named_parameters()}  # a tied parameter once
        names = {
            (module, key): without_peft(first[each])
            for module in model.modules()
            for key, each in module._parameters.items()
            if each is not None and not is_matrix(first[each])
        }
        decoder, head = whole.get_decoder(), whole.get_output_embeddings()
        roles = {module: _role(name, module) for name, module in decoder.named_modules()} | {head: "head"}
        inside = tuple(dict(layer.named_modules()) for layer in layers)
        in_layers = {module for modules in inside for module in modules.values()}
        outside = tuple(module for module in decoder.modules() if module not in in_layers)
        experts = {ffn.layer: ffn.experts for ffn in ffn_layers(model) if ffn.experts is not None}
        return cls(model, decoder, layers, head, names, roles, attentions, _results(model, layers), inside, experts, outside)

    def loaded(self, dtype: torch.dtype) -> LoadedDtypes:
        """The model as transformers loads it in ``dtype``."""
        if dtype not in self._loaded:
            self._loaded[dtype] = loaded_dtypes(self.model, dtype)
        return self._loaded[dtype]

    def name(self, module: nn.Module, key: str) -> str:
        """The name in the model of the module's parameter ``key``; for tied weights that of the embeddings."""
        return self.names[module, key]


def _role(name: str, module: nn.Module) -> Role:
    """Norm, router (of experts, or the gate of a shared expert), linear map or experts, or something else."""
    module = getattr(module, "base_layer", module)  # peft puts an adapter's matrices around it
    kind = type(module).__name__
    if "Norm" in kind:
        return "norm"
    if kind.endswith("Router") or name.endswith("shared_expert_gate"):
        return "router"
    wide = any(parameter is not None and parameter.dim() > 1 for parameter in module._parameters.values())
    return "map" if wide and not isinstance(module, (nn.Embedding, nn.Conv1d)) else "other"


def _results(model: nn.Module, layers: tuple[nn.Module, ...]) -> tuple[int | None, ...]:
    """The length of the tuple that each layer returns, None for a tensor."""
    lengths: dict[nn.Module, int | None] = {}

    def record(module: nn.Module, arguments: tuple[Any, ...], result: Any) -> None:
        lengths[module] = len(result) if isinstance(result, tuple) else None

    hooks = [layer.register_forward_hook(record) for layer in layers]
    try:
        check_logits(model, torch.zeros(1, 2, dtype=torch.int64, device=cast(Any, model).get_input_embeddings().weight.device))
    finally:
        for hook in hooks:
            hook.remove()
    return tuple(lengths[layer] for layer in layers)
