"""The parts of a causal language model that precision is set for: its layers, norms, routers, attentions, linear maps, and head."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from analyzers.language_models.ffn import attention_projections, decoder_layers

Role = Literal["norm", "router", "map", "head", "other"]


@dataclass(frozen=True, eq=False, slots=True)
class AttentionParts:
    """The attention of a layer. projections: modules that give its queries, keys and values."""

    module: nn.Module
    projections: frozenset[nn.Module]


@dataclass(frozen=True, eq=False, slots=True)
class Anatomy:
    """A model, taken apart. decoder: what runs the layers; head: from the decoder's result to logits; names: of parameters, by identity;
    roles: of every module of decoder and head; attentions: one for each layer; results: how many things a layer returns, None where it is
    the hidden states alone.
    """

    model: nn.Module
    decoder: nn.Module
    layers: tuple[nn.Module, ...]
    head: nn.Module
    names: dict[int, str]
    roles: dict[nn.Module, Role]
    attentions: tuple[AttentionParts, ...]
    results: tuple[int | None, ...]

    @classmethod
    def of(cls, model: nn.Module) -> "Anatomy":
        """Runs the model once, over two tokens. Raises UnknownArchitecture for a family that is not known."""
        whole = cast(Any, model)
        layers = tuple(decoder_layers(model))
        attentions = tuple(
            AttentionParts(each.module, frozenset(each.maps[name].module for name in "qkv")) for each in attention_projections(model)
        )
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        decoder, head = whole.get_decoder(), whole.get_output_embeddings()
        roles = {module: _role(name, module) for name, module in decoder.named_modules()} | {head: "head"}
        return cls(model, decoder, layers, head, names, roles, attentions, _results(decoder, layers))

    def outside(self) -> Iterator[nn.Module]:
        """Modules of the decoder that are in none of its layers: embeddings, final norm, projections."""
        inside = {module for layer in self.layers for module in layer.modules()}
        return (module for module in self.decoder.modules() if module not in inside)

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
    return "map" if wide and not isinstance(module, nn.Embedding) else "other"


def _results(decoder: nn.Module, layers: tuple[nn.Module, ...]) -> tuple[int | None, ...]:
    """How many things each layer returns."""
    found: dict[nn.Module, int | None] = {}

    def note(module: nn.Module, given: tuple[Any, ...], result: Any) -> None:
        found[module] = len(result) if isinstance(result, tuple) else None

    hooks = [layer.register_forward_hook(note) for layer in layers]
    try:
        device = next(decoder.parameters()).device
        with torch.no_grad():
            decoder(input_ids=torch.zeros(1, 2, dtype=torch.int64, device=device), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return tuple(found[layer] for layer in layers)
