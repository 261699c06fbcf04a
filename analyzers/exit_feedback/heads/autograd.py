"""Logits whose backward pass gives h the signal of a method in place of (dL/dy) W, for any loss."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from analyzers.exit_feedback.heads.token_rows import Rows, Signal, SignalSource, pieces, wide


class SignalLogits(torch.autograd.Function):
    """Logits (..., V) for h (..., d), W (V, d), b (V,) and the head that computes the signal."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, weight: Tensor, bias: Tensor | None, source: SignalSource) -> Tensor:
        """Compute logits, and save y for the backward pass under a cap, else the logits if the signal reads them: y follows from them."""
        activation = source.activation
        y = linear(h, weight, bias)
        logits = activation(y)
        ctx.source = source
        ctx.save_for_backward(h, weight, bias, y if activation.cap is not None else logits if source.reads_logits else None)
        return logits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        """Return the signal for h, and the exact gradients of W and b. Tokens without a gradient get exactly 0 and add nothing to W's."""
        h, weight, bias, saved = ctx.saved_tensors
        source: SignalSource = ctx.source
        activation = source.activation
        states, grad_z = h.reshape(-1, h.shape[-1]), gradient.reshape(-1, len(weight))
        live = live_rows(grad_z)
        states = states.masked_fill(~live[:, None], 0)  # Hidden states of padding may be NaN.
        y = None if saved is None else saved.view(grad_z.shape)
        if y is not None and activation.cap is None and activation.scale != 1:
            y = y / activation.scale
        for_h = for_weight = for_bias = None
        with torch.autocast(h.device.type, enabled=False):
            if ctx.needs_input_grad[0]:
                signal = source.begin(weight, states, live, max(64, len(states) // 16))
                feedback, grad_y = signal_of_rows(source, signal, states, grad_z, y, bias, None)
                for_h = feedback.to(h.dtype).masked_fill_(~live[:, None], 0).view(h.shape)
            else:
                grad_y = linear_gradient(source, grad_z, y)
            if ctx.needs_input_grad[1]:
                for_weight = grad_y.mT @ states
            if ctx.needs_input_grad[2]:
                for_bias = grad_y.sum(0)
        return for_h, for_weight, for_bias, None


def live_rows(gradient: Tensor) -> Tensor:
    """Return the mask (n,) of the rows of (n, V) that are not all 0."""
    return (gradient.amax(-1) != 0) | (gradient.amin(-1) != 0)


def linear_gradient(source: SignalSource, grad_z: Tensor, y: Tensor | None) -> Tensor:
    """Return dL/dy (n, V) for dL/dz; the tensor itself if z = y."""
    if source.activation.is_identity:
        return grad_z
    return source.activation.backward_(grad_z.to(wide(grad_z.dtype), copy=True), y).to(grad_z.dtype)


def signal_of_rows(
    source: SignalSource, signal: Signal, states: Tensor, grad_z: Tensor, y: Tensor | None, bias: Tensor | None, gold: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the signal (n, d) and dL/dy (n, V) for dL/dz. y: h W^T + b, if the activation or the signal reads it."""
    grad_y = linear_gradient(source, grad_z, y)
    if not source.reads_logits:
        return signal(Rows(states, grad_y)), grad_y
    assert y is not None
    feedback, kind = torch.empty_like(states), wide(grad_y.dtype)
    known = gold is not None and bool((gold >= 0).all())
    for part in pieces(grad_z, len(grad_z)):
        part_gold = None if gold is None else gold[part]
        feedback[part] = signal(Rows(states[part], grad_y[part].to(kind), grad_z[part].to(kind), y[part].to(kind), bias, part_gold, known))
    return feedback, grad_y
