"""Records the inputs of a layer's linear maps, and the targets of their output gradients, with hooks."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from analyzers.language_models.ffn import FFN, Attention, expert_activation

Mask = Callable[[Tensor | None, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Routed:
    """One pass through a layer's experts. Rows are sorted by expert, then by token.

    experts: the module. hidden: (N, d), the input shared by all experts; tokens: (R,), the row of ``hidden`` for each routed row; counts:
    rows per expert; activations: (R, F), the input of down; preactivation, output: targets of the gradients of (R, 2F), gate and up
    together, and of (R, d).
    """

    experts: nn.Module
    hidden: Tensor
    tokens: Tensor
    counts: Sequence[int]
    activations: Tensor
    preactivation: GradientEdge
    output: GradientEdge


@contextmanager
def replaced_forwards(forwards: Iterable[tuple[nn.Module, Callable[..., Any]]]) -> Iterator[None]:
    """Context manager in which each module runs a forward in place of its own, or of the one accelerate gave it."""
    replaced: list[tuple[dict[str, Any], Any]] = []
    try:
        for module, forward in forwards:
            attributes = vars(module)  # setting them by name would take longer than some modules compute
            replaced.append((attributes, attributes.get("forward")))
            attributes["forward"] = forward
        yield
    finally:
        for attributes, before in reversed(replaced):
            if before is None:
                del attributes["forward"]
            else:
                attributes["forward"] = before


def replaced_forward(module: nn.Module, forward: Callable[..., Any]) -> AbstractContextManager[None]:
    """Context manager in which ``module`` runs ``forward`` in place of its own."""
    return replaced_forwards([(module, forward)])


def observed(experts: nn.Module, mask: Mask | None, keep: Callable[[Routed], None]) -> AbstractContextManager[None]:
    """Context manager in which the experts' passes are observable: ``keep`` is called with each differentiable pass.

    mask: as in `capture.run`, called once for all rows. Results equal those of the original experts up to the order of additions.
    """

    def forward(hidden_states: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
        return _run(cast(Any, experts), hidden_states, indices, weights, mask, keep)

    return replaced_forward(experts, forward)


def _run(experts: Any, hidden: Tensor, indices: Tensor, weights: Tensor, mask: Mask | None, keep: Callable[[Routed], None]) -> Tensor:
    chosen = indices.flatten()
    order = torch.argsort(chosen, stable=True)
    tokens = order // indices.shape[1]
    counts = torch.bincount(chosen, minlength=experts.num_experts).tolist()
    preactivation = _grouped_linear(hidden[tokens], counts, experts, "gate_up_proj")
    activations = experts._apply_gate(preactivation)
    if mask is not None:
        gate, up = (preactivation[:, part] for part in gate_and_up(experts))
        activations = mask(expert_activation(experts)(gate), up, activations, tokens)
    output = _grouped_linear(activations, counts, experts, "down_proj")
    if torch.is_grad_enabled():
        keep(
            Routed(
                experts, hidden.detach(), tokens, counts, activations.detach(), get_gradient_edge(preactivation), get_gradient_edge(output)
            )
        )
    weighted = output * weights.flatten()[order, None]
    back = torch.empty_like(order)
    back[order] = torch.arange(order.numel(), device=order.device)
    return weighted[back].view(*indices.shape, -1).sum(1).to(hidden.dtype)


def gate_and_up(experts: nn.Module) -> tuple[slice, slice]:
    """Split the joint output of gate and up: halves, or interleaved columns."""
    if not experts.is_concatenated:
        return slice(0, None, 2), slice(1, None, 2)
    weight = cast(Tensor, experts.gate_up_proj)
    width = weight.shape[2 if experts.is_transposed else 1] // 2
    return slice(0, width), slice(width, None)


def _grouped_linear(rows: Tensor, counts: Sequence[int], experts: Any, name: str) -> Tensor:
    """Apply each expert's slice of the parameter ``name`` to its rows."""
    weight, bias = getattr(experts, name), getattr(experts, f"{name}_bias", None)
    pieces = []
    for expert, piece in enumerate(torch.split(rows, list(counts))):
        if counts[expert]:
            matrix = weight[expert] if experts.is_transposed else weight[expert].T
            pieces.append(piece @ matrix if bias is None else torch.addmm(bias[expert], piece, matrix))
    return torch.cat(pieces)


Units = FFN | Attention


@dataclass(frozen=True, slots=True)
class Passed:
    """One pass through a linear map. given: its input, (N, d); output: the target of its output gradient."""

    given: Tensor
    output: GradientEdge


class Recording:
    """Differentiable passes through the linear maps of ``units``, by module, recorded while `attached`.

    masks: per layer, applied between an FFN's activation and its down map (`capture.run`).
    """

    def __init__(self, units: Iterable[Units], masks: Mapping[int, Mask]) -> None:
        self._layers: dict[int, list[Units]] = {}
        for unit in units:
            self._layers.setdefault(unit.layer, []).append(unit)
        self._masks = masks
        self._passed: dict[nn.Module, Passed] = {}
        self._routed: dict[nn.Module, Routed] = {}

    @property
    def layers(self) -> Mapping[int, list[Units]]:
        """Units of each layer that has any."""
        return self._layers

    def take(self, layer: int) -> tuple[dict[nn.Module, Passed], dict[nn.Module, Routed]]:
        """Return and clear the passes recorded for a layer's modules and experts."""
        modules, experts = self._modules(layer)
        return {each: self._passed.pop(each) for each in modules}, {each: self._routed.pop(each) for each in experts}

    @contextmanager
    def attached(self, layers: Iterable[int]) -> Iterator[None]:
        """Context manager that records the passes of these layers."""
        with ExitStack() as stack:
            for layer in layers:
                modules, experts = self._modules(layer)
                mask = self._masks.get(layer)
                for unit in self._layers.get(layer, ()):
                    if mask is not None and isinstance(unit, FFN) and unit.experts is None:
                        self._put_mask(stack, unit, mask)
                for module in modules:
                    stack.callback(module.register_forward_hook(self._record).remove)
                for module in experts:
                    stack.enter_context(observed(module, mask, partial(self._routed.__setitem__, module)))
            yield

    def _modules(self, layer: int) -> tuple[list[nn.Module], list[nn.Module]]:
        """Return the linear maps of a layer's units, and the modules of its experts, each once."""
        units = self._layers.get(layer, ())
        modules = dict.fromkeys(linear.module for unit in units for linear in unit.maps.values())
        experts = dict.fromkeys(unit.experts for unit in units if isinstance(unit, FFN) and unit.experts is not None)
        return list(modules), list(experts)

    def _record(self, module: nn.Module, given: tuple[Any, ...], output: Tensor) -> None:
        if torch.is_grad_enabled():
            self._passed[module] = Passed(given[0].detach(), get_gradient_edge(output))

    def _put_mask(self, stack: ExitStack, ffn: FFN, mask: Mask) -> None:
        outputs: dict[nn.Module, Tensor] = {}

        def note(module: nn.Module, given: tuple[Any, ...], output: Tensor) -> None:
            outputs[module] = output

        def apply(module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
            def part(name: str) -> Tensor:
                linear = ffn.maps[name]
                whole = outputs[linear.module]
                return whole if linear.rows is None else whole[..., linear.rows]

            gate = ffn.activation(part("gate")) if ffn.gated else None
            product = mask(gate, part("up"), given[0], torch.arange(given[0].shape[:-1].numel(), device=given[0].device))
            outputs.clear()
            return (product, *given[1:])

        for name in ("gate", "up"):
            if name in ffn.maps:
                stack.callback(ffn.maps[name].module.register_forward_hook(note).remove)
        stack.callback(ffn.maps["down"].module.register_forward_pre_hook(apply).remove)
