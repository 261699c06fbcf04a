"""Locates a model's neurons: its FFNs and experts, found by the names in `module_names`."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from analyzers.checkpoints import quoted
from analyzers.core.errors import UnknownArchitecture
from analyzers.language_models.module_names import FAMILIES, Family, FFNNames


@dataclass(frozen=True, eq=False, slots=True)
class Linear:
    """A linear map: the ``width`` outputs ``rows`` of ``module``, all of them for None."""

    module: nn.Module
    width: int
    rows: slice | None = None


@dataclass(frozen=True, eq=False, slots=True)
class FFN:
    """A feed-forward network of ``width`` neurons, or one expert of a mixture-of-experts layer.

    layer: counted from 0; expert: its index, None for a network that receives every token (with experts: the shared one).
    hidden: width of its input and output. maps: "gate" (if ``gated``), "up", "down"; empty for an expert, whose weights are slices of the
    parameters of ``experts``. activation: applied to gate, or to up if there is no gate.
    """

    layer: int
    expert: int | None
    width: int
    hidden: int
    gated: bool
    maps: Mapping[str, Linear]
    activation: Callable[[Tensor], Tensor]
    experts: nn.Module | None = None


def ffn_layers(model: nn.Module) -> tuple[FFN, ...]:
    """List every FFN of a causal language model in layer order; within a layer, the experts precede the FFN that receives every token.

    Raises UnknownArchitecture, naming the model type, for an unsupported family.
    """
    return tuple(ffn for layer, block in enumerate(decoder_layers(model)) for ffn in layer_ffns(model, layer, block))


def layer_ffns(model: nn.Module, layer: int, block: nn.Module) -> Iterator[FFN]:
    """Yield the FFNs within ``block``, layer number ``layer`` of a model or a copy of it, the experts first."""
    family = family_of(model)
    experts = _find(block, family.experts)
    if experts is None:
        yield _dense(layer, block, family.ffn)
        return
    for expert in range(cast(int, experts.num_experts)):
        yield _expert(layer, expert, experts)
    if family.shared is not None and _find(block, family.shared.where) is not None:
        yield _dense(layer, block, family.shared)


def attention_of(model: nn.Module, block: nn.Module) -> nn.Module | None:
    """Return the attention module of a layer of a model or a copy of it; None if it has none."""
    return _find(block, family_of(model).attention)


def text_config(model: nn.Module) -> Any:
    """Return the configuration of the text model."""
    return cast(Any, model).config.get_text_config()


def decoder_layers(model: nn.Module) -> nn.ModuleList:
    """Return the decoder's layers, in order."""
    decoder = cast(Any, model).get_decoder()
    return cast(nn.ModuleList, next(getattr(decoder, name) for name in ("layers", "h", "blocks") if hasattr(decoder, name)))


def unknown_family(kind: str) -> UnknownArchitecture:
    """Return the error for model types that belong to no family in `module_names`."""
    known = ", ".join(FAMILIES)
    return UnknownArchitecture(
        f"Models of the type {quoted(kind)} are not supported: their layers, or their language model, are not known. Supported are {known}."
    )


def family_of(model: nn.Module) -> Family:
    """Return the model's family. Raises UnknownArchitecture, naming the model type, if it is not supported."""
    kind = str(text_config(model).model_type)
    if kind not in FAMILIES:
        raise unknown_family(kind)
    return FAMILIES[kind]


def _dense(layer: int, block: nn.Module, names: FFNNames) -> FFN:
    within = block.get_submodule(names.where)
    up, down = within.get_submodule(names.up), within.get_submodule(names.down)
    width, hidden = _shape(down)
    maps = {"up": Linear(up, width), "down": Linear(down, hidden)}
    if names.gate == names.up:
        maps = {"gate": Linear(up, width, slice(0, width)), "up": Linear(up, width, slice(width, 2 * width)), "down": maps["down"]}
    elif names.gate is not None:
        maps = {"gate": Linear(within.get_submodule(names.gate), width), **maps}
    activation = within.get_submodule(names.activation) if isinstance(names.activation, str) else names.activation(within)
    return FFN(layer, None, width, hidden, names.gate is not None, maps, activation)


def _expert(layer: int, expert: int, experts: nn.Module) -> FFN:
    parameter = cast(Tensor, experts.down_proj)
    width, hidden = parameter.shape[1:] if experts.is_transposed else parameter.shape[:0:-1]
    return FFN(layer, expert, width, hidden, True, {}, expert_activation(experts), experts)


def expert_activation(experts: nn.Module) -> Callable[[Tensor], Tensor]:
    """Return the activation of the experts' gate, applied before the product with up."""
    if hasattr(experts, "act_fn"):
        return cast(Callable[[Tensor], Tensor], experts.act_fn)
    limit, alpha = cast(float, experts.limit), cast(float, experts.alpha)

    def clamped(gate: Tensor) -> Tensor:
        gate = gate.clamp(max=limit)
        return gate * torch.sigmoid(alpha * gate)

    return clamped


def _shape(module: nn.Module) -> tuple[int, int]:
    """Return the input and output widths of a linear map; Conv1D stores its weight transposed."""
    first, second = cast(Tensor, module.weight).shape
    return (second, first) if isinstance(module, nn.Linear) else (first, second)


def _find(block: nn.Module, path: str | None) -> nn.Module | None:
    """Return the module at ``path`` in a layer, None if there is none."""
    found: nn.Module | None = None if path is None else block
    for step in path.split(".") if path is not None else ():
        found = getattr(found, step, None)
    return found
