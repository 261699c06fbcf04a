"""Experts that are slices of 3-D parameters: run so that what each of them gets and gives can be seen.

Axes: N tokens, R routed rows (a token for each of its experts), F neurons, d width.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from analyzers.language_models.ffn import expert_activation

Mask = Callable[[Tensor | None, Tensor, Tensor, Tensor | None], Tensor]


@dataclass(frozen=True, slots=True)
class Routed:
    """One pass through a layer's experts. Rows are in order of their expert, and of their token within it.

    experts: their module. hidden: (N, d), what all of them choose from; tokens: (R,), which of its rows; counts: rows of each expert;
    activations: (R, F), what enters down; preactivation, output: where the gradients of (R, 2F), of gate and up together, and of (R, d)
    will arrive.
    """

    experts: nn.Module
    hidden: Tensor
    tokens: Tensor
    counts: Sequence[int]
    activations: Tensor
    preactivation: GradientEdge
    output: GradientEdge


@contextmanager
def observed(experts: nn.Module, mask: Mask | None, keep: Callable[[Routed], None]) -> Iterator[None]:
    """Inside, the experts run in a way that can be seen: ``keep`` is called with each pass that is to be differentiated.

    mask: as of `capture.run`, called once for all rows. The result is the experts' own, but for the order of additions.
    """

    def forward(hidden_states: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
        return _run(cast(Any, experts), hidden_states, indices, weights, mask, keep)

    before = experts.__dict__.get("forward")
    experts.forward = forward
    try:
        yield
    finally:
        if before is None:
            del experts.forward
        else:
            experts.forward = before


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
    """The columns of gate and of up in the output of both: halves, or taking turns."""
    if not experts.is_concatenated:
        return slice(0, None, 2), slice(1, None, 2)
    weight = cast(Tensor, experts.gate_up_proj)
    width = weight.shape[2 if experts.is_transposed else 1] // 2
    return slice(0, width), slice(width, None)


def _grouped_linear(rows: Tensor, counts: Sequence[int], experts: Any, name: str) -> Tensor:
    """Each expert's rows through its own slice of the parameter ``name``."""
    weight, bias = getattr(experts, name), getattr(experts, f"{name}_bias", None)
    pieces = []
    for expert, piece in enumerate(torch.split(rows, list(counts))):
        if counts[expert]:
            matrix = weight[expert] if experts.is_transposed else weight[expert].T
            pieces.append(piece @ matrix if bias is None else torch.addmm(bias[expert], piece, matrix))
    return torch.cat(pieces)
