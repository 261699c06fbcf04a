"""Finds the weights of a model's neurons as parameters, for gradients by plain autograd."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor, nn

from analyzers.core.errors import UnknownArchitecture, UnsupportedWeights
from analyzers.language_models.ffn import FFN, Linear, ffn_layers
from analyzers.language_models.unit_gradients import gate_and_up

View = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False, slots=True)
class UnitWeights:
    """The weights of the neurons of one FFN or expert.

    parts: by block, as in `unit_gradients.UnitGradients`: the parameter, and the function that views it, or its gradient, as (d, F), in
    which column n belongs to neuron n.
    """

    layer: int
    expert: int | None
    parts: Mapping[str, tuple[nn.Parameter, View]]


def unit_weights(model: nn.Module) -> tuple[UnitWeights, ...]:
    """List the weights of every neuron, in layer order.

    Raises UnknownArchitecture for a model that is no language model of a supported family; UnsupportedWeights for weights that are computed
    from other tensors or shared by several layers.
    """
    if not hasattr(getattr(model, "config", None), "get_text_config") or not hasattr(model, "get_decoder"):
        raise UnknownArchitecture("Batches run through a causal language model of transformers: its neurons are found by name.")
    found = tuple(map(_weights, ffn_layers(model)))
    if not all(isinstance(parameter, nn.Parameter) for each in found for parameter, _ in each.parts.values()):
        raise UnsupportedWeights("Some weights of this model are computed from other tensors (parametrizations): remove them first.")
    owners = {(parameter, each.layer) for each in found for parameter, _ in each.parts.values()}
    if len(owners) > len({parameter for parameter, _ in owners}):
        raise UnsupportedWeights("Some layers of this model share their weights: the gradient of a weight is that of all of them together.")
    return found


def _weights(unit: FFN) -> UnitWeights:
    if unit.experts is not None:
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
