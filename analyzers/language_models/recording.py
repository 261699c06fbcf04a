"""Hooks on a layer's linear maps: record their inputs and the targets of their output gradients."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from analyzers.language_models.experts import Mask, Routed, observed
from analyzers.language_models.ffn import FFN, Attention

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
        """The units of each layer that has any."""
        return self._layers

    def take(self, layer: int) -> tuple[dict[nn.Module, Passed], dict[nn.Module, Routed]]:
        """Return and clear the passes recorded for a layer's modules and experts."""
        units = self._layers.get(layer, ())
        modules = dict.fromkeys(linear.module for unit in units for linear in unit.maps.values())
        experts = dict.fromkeys(unit.experts for unit in units if isinstance(unit, FFN) and unit.experts is not None)
        return {each: self._passed.pop(each) for each in modules}, {each: self._routed.pop(each) for each in experts}

    @contextmanager
    def attached(self, layers: Iterable[int]) -> Iterator[None]:
        """Context manager that records the passes of these layers."""
        with ExitStack() as stack:
            for layer in layers:
                modules: dict[nn.Module, None] = {}
                experts: dict[nn.Module, None] = {}
                for unit in self._layers.get(layer, ()):
                    modules |= dict.fromkeys(linear.module for linear in unit.maps.values())
                    if isinstance(unit, FFN) and unit.experts is not None:
                        experts[unit.experts] = None
                    elif isinstance(unit, FFN) and layer in self._masks:
                        self._put_mask(stack, unit, self._masks[layer])
                for module in modules:
                    stack.callback(module.register_forward_hook(self._record).remove)
                for module in experts:
                    stack.enter_context(observed(module, self._masks.get(layer), self._keep(module)))
            yield

    def _record(self, module: nn.Module, given: tuple[Any, ...], output: Tensor) -> None:
        if torch.is_grad_enabled():
            self._passed[module] = Passed(given[0].detach(), get_gradient_edge(output))

    def _keep(self, module: nn.Module) -> Callable[[Routed], None]:
        def keep(routed: Routed) -> None:
            self._routed[module] = routed

        return keep

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
            product = mask(gate, part("up"), given[0], None)
            outputs.clear()
            return (product, *given[1:])

        for name in ("gate", "up"):
            if name in ffn.maps:
                stack.callback(ffn.maps[name].module.register_forward_hook(note).remove)
        stack.callback(ffn.maps["down"].module.register_forward_pre_hook(apply).remove)
