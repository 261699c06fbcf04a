"""Finds the weights of a model's units as parameters, for gradients by plain autograd; in any module with feed-forward blocks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from torch import Tensor, nn

from analyzers.core.errors import UnknownArchitecture, UnsupportedWeights
from analyzers.language_models.ffn import FFN, Attention, Linear, attention_projections, decoder_layers, ffn_layers
from analyzers.language_models.module_names import FAMILIES
from analyzers.language_models.unit_gradients import gate_and_up

View = Callable[[Tensor], Tensor]
_NAMES = {(family.ffn.gate, family.ffn.up, family.ffn.down) for family in FAMILIES.values() if family.ffn.gate != family.ffn.up}
# Names in torch, T5 and much plain code.
_NAMES |= {(None, "linear1", "linear2"), (None, "w1", "w2"), (None, "wi", "wo"), ("wi_0", "wi_1", "wo")}
_BLOCKS = {frozenset(filter(None, names)): names for names in _NAMES}


@dataclass(frozen=True, eq=False, slots=True)
class UnitWeights:
    """The weights of the units of one FFN, expert or attention.

    parts: by block, as in `unit_gradients.UnitGradients`: the parameter, and the function that views it, or its gradient, as (d, F), in
    which column n belongs to unit n.
    """

    layer: int
    expert: int | None
    parts: Mapping[str, tuple[nn.Parameter, View]]


def unit_weights(model: nn.Module, unit: Literal["ffn", "attention"]) -> tuple[UnitWeights, ...]:
    """List the weights of every unit, in layer order.

    In a model of no supported family, feed-forward blocks count as layers, in its own order.

    Such a block is a module whose only linear maps are named as those of a supported family, of `nn.TransformerEncoderLayer` or of T5, or
    an `nn.Sequential` with two `nn.Linear`, if the second maps the output of the first. Raises UnknownArchitecture for a model without such
    units; UnsupportedWeights for weights that are computed from other tensors or shared by several layers.
    """
    units: Sequence[FFN | Attention] = ()
    if _of_family(model):
        units = ffn_layers(model) if unit == "ffn" else attention_projections(model)
    elif unit == "ffn":
        units = tuple(_blocks(model))
    if not units:
        raise UnknownArchitecture(
            "Attention projections are measured in language models of the supported families only: choose the unit ffn."
            if unit == "attention"
            else "No feed-forward blocks were found: a model must be a language model of a supported family, or have modules whose only "
            "linear maps are named like gate_proj, up_proj and down_proj, fc1 and fc2, linear1 and linear2 or w1 and w2, or that are an "
            "nn.Sequential with two nn.Linear."
        )
    found = tuple(_weights(each) for each in units)
    if not all(isinstance(parameter, nn.Parameter) for each in found for parameter, _ in each.parts.values()):
        raise UnsupportedWeights("Some weights of this model are computed from other tensors (parametrizations): remove them first.")
    owners = {(parameter, each.layer) for each in found for parameter, _ in each.parts.values()}
    if len(owners) > len({parameter for parameter, _ in owners}):
        raise UnsupportedWeights("Some layers of this model share their weights: the gradient of a weight is that of all of them together.")
    return found


def _of_family(model: nn.Module) -> bool:
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "get_text_config") or config.get_text_config().model_type not in FAMILIES:
        return False
    try:
        return len(decoder_layers(model)) > 0
    except (AttributeError, StopIteration):  # a part of such a model may lack them
        return False


def _blocks(model: nn.Module) -> Iterator[FFN]:
    layer = 0
    for module in model.modules():
        linear = {name: child for name, child in module.named_children() if isinstance(child, nn.Linear)}
        names = _BLOCKS.get(frozenset(linear))
        if names is None and isinstance(module, nn.Sequential) and len(linear) == 2:
            up, down = linear
            names = (None, up, down)
        if names is None:
            continue
        gate, up, down = names
        width, hidden = linear[down].in_features, linear[down].out_features
        if all(linear[name].out_features == width for name in (gate, up) if name is not None):
            maps = {"up": Linear(linear[up], width), "down": Linear(linear[down], hidden)}
            maps = maps if gate is None else {"gate": Linear(linear[gate], width), **maps}
            yield FFN(layer, None, width, hidden, gate is not None, maps, nn.Identity())
            layer += 1


def _weights(unit: FFN | Attention) -> UnitWeights:
    if isinstance(unit, FFN) and unit.experts is not None:
        return UnitWeights(unit.layer, unit.expert, _of_expert(cast(Any, unit.experts), unit.expert))
    parts = {name: (cast(nn.Parameter, linear.module.weight), _view(name, linear)) for name, linear in unit.maps.items()}
    return UnitWeights(unit.layer, None, parts)


def _view(name: str, linear: Linear) -> View:
    def view(weight: Tensor) -> Tensor:
        by_output = weight.t() if isinstance(linear.module, nn.Linear) else weight  # Conv1D stores its weight transposed
        if name == "down":
            return by_output.t()
        return by_output if linear.rows is None else by_output[:, linear.rows]

    return view


def _of_expert(experts: Any, expert: int | None) -> dict[str, tuple[nn.Parameter, View]]:
    transposed: bool = experts.is_transposed
    gate, up = gate_and_up(experts)

    def of_input(columns: slice) -> View:
        return lambda weight: (weight[expert] if transposed else weight[expert].t())[:, columns]

    def of_output(weight: Tensor) -> Tensor:
        return weight[expert].t() if transposed else weight[expert]

    joint = experts.gate_up_proj
    return {"gate": (joint, of_input(gate)), "up": (joint, of_input(up)), "down": (experts.down_proj, of_output)}
