"""Experts stored as slices of 3-D parameters: runs them so that the inputs and outputs of each expert are observable.

Axes: N tokens, R routed rows (one per token and selected expert), F neurons, d width.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from analyzers.language_models.ffn import expert_activation

Mask = Callable[[Tensor | None, Tensor, Tensor, Tensor | None], Tensor]


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
def replaced_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Context manager in which ``module`` runs ``forward`` in place of its own, or of the one accelerate gave it."""
    before = module.__dict__.get("forward")
    module.forward = forward
    try:
        yield
    finally:
        if before is None:
            del module.forward
        else:
            module.forward = before


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
