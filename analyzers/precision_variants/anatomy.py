"""The parts of a causal language model that precision is set for: its layers, norms, routers, attentions, linear maps, and head."""

from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from analyzers.language_models.failures import running
from analyzers.language_models.ffn import attention_projections, decoder_layers

Role = Literal["norm", "router", "map", "head", "other"]


@dataclass(frozen=True, eq=False, slots=True)
class AttentionParts:
    """The attention of a layer. projections: modules that lead to its queries, keys and values."""

    module: nn.Module
    projections: frozenset[nn.Module]


@dataclass(frozen=True, eq=False, slots=True)
class Anatomy:
    """A model, taken apart. decoder: what runs the layers; head: from the decoder's result to logits; names: of parameters, by identity;
    roles: of every module of decoder and head; attentions: one for each layer, None where something else stands in its place; results: how
    many things a layer returns, None where it is the hidden states alone; inside: the modules of each layer by their names in it, the layer
    itself first; outside: those of the decoder that are in no layer, embeddings, final norm, projections.
    """

    model: nn.Module
    decoder: nn.Module
    layers: tuple[nn.Module, ...]
    head: nn.Module
    names: dict[int, str]
    roles: dict[nn.Module, Role]
    attentions: tuple[AttentionParts | None, ...]
    results: tuple[int | None, ...]
    inside: tuple[dict[str, nn.Module], ...]
    outside: tuple[nn.Module, ...]

    @classmethod
    def of(cls, model: nn.Module) -> "Anatomy":
        """Runs the model once, over two tokens. Raises UnknownArchitecture for a family that is not known."""
        whole = cast(Any, model)
        layers = tuple(decoder_layers(model))
        found = {
            each.layer: AttentionParts(each.module, frozenset(map.module for name, map in each.maps.items() if name != "o"))
            for each in attention_projections(model)
        }
        attentions = tuple(found.get(layer) for layer in range(len(layers)))
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        decoder, head = whole.get_decoder(), whole.get_output_embeddings()
        roles = {module: _role(name, module) for name, module in decoder.named_modules()} | {head: "head"}
        inside = tuple(dict(layer.named_modules()) for layer in layers)
        in_layers = {module for each in inside for module in each.values()}
        outside = tuple(module for module in decoder.modules() if module not in in_layers)
        return cls(model, decoder, layers, head, names, roles, attentions, _results(decoder, layers), inside, outside)

    def name(self, parameter: Tensor) -> str:
        """Its name in the model; of tied weights that of the embeddings."""
        return self.names[id(parameter)]


def _role(name: str, module: nn.Module) -> Role:
    """What a module is: a norm, a router (of experts, or of the one beside them), a linear map or experts, or something else."""
    kind = type(module).__name__
    if "Norm" in kind:
        return "norm"
    if kind.endswith("Router") or name.endswith("shared_expert_gate"):
        return "router"
    wide = any(parameter is not None and parameter.dim() > 1 for parameter in module._parameters.values())
    return "map" if wide and not isinstance(module, (nn.Embedding, nn.Conv1d)) else "other"


def _results(decoder: nn.Module, layers: tuple[nn.Module, ...]) -> tuple[int | None, ...]:
    """How many things each layer returns."""
    found: dict[nn.Module, int | None] = {}

    def note(module: nn.Module, given: tuple[Any, ...], result: Any) -> None:
        found[module] = len(result) if isinstance(result, tuple) else None

    hooks = [layer.register_forward_hook(note) for layer in layers]
    try:
        device = next(decoder.parameters()).device
        with torch.no_grad(), running():
            decoder(input_ids=torch.zeros(1, 2, dtype=torch.int64, device=device), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return tuple(found[layer] for layer in layers)
