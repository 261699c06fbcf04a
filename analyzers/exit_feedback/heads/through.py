"""``head(h)``: logits whose way back takes any gradient and gives h the signal of a method in place of that gradient times W."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from analyzers.exit_feedback.heads.activation import Activation, wide
from analyzers.exit_feedback.heads.rows import Rows, Signal, pieces

if TYPE_CHECKING:
    from analyzers.exit_feedback.heads.head import FeedbackHead


class LogitsOf(torch.autograd.Function):
    """Logits (..., V) of h (..., d), W (V, d), b (V,) and the head that the signal comes from."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, weight: Tensor, bias: Tensor | None, head: "FeedbackHead") -> Tensor:
        """Saves what the way back reads: under a cap y, else the logits themselves, from which y follows."""
        y = linear(h, weight, bias)
        logits = head.activation(y)
        ctx.head = head
        ctx.save_for_backward(h, weight, bias, y if head.activation.cap is not None else logits if head.reads_logits else None)
        return logits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        """The signal for h; gradients of W and b as autograd's. Tokens without a gradient get exactly 0 and give W nothing."""
        h, weight, bias, saved = ctx.saved_tensors
        head: FeedbackHead = ctx.head
        activation = head.activation
        states, flat = h.reshape(-1, h.shape[-1]), gradient.reshape(-1, len(weight))
        y = None if saved is None else (saved if activation.cap is not None else activation.linear(saved)).view(flat.shape)
        live = live_rows(flat)
        states = states.masked_fill(~live[:, None], 0)  # what stands in a padded token may not be a number
        for_h = for_weight = for_bias = None
        with torch.autocast(h.device.type, enabled=False):
            if ctx.needs_input_grad[0]:
                signal = head.begin(weight, states, live, max(64, len(states) // 16))
                found, at_y = feedback_of(head, signal, states, flat, y, bias, None)
                for_h = found.to(h.dtype).masked_fill_(~live[:, None], 0).view(h.shape)
            else:
                at_y = gradient_at_linear(activation, flat, y)
            if ctx.needs_input_grad[1]:
                for_weight = at_y.mT @ states
            if ctx.needs_input_grad[2]:
                for_bias = at_y.sum(0)
        return for_h, for_weight, for_bias, None


def live_rows(gradient: Tensor) -> Tensor:
    """(n,) bool: the rows of (n, V) in which not all is 0."""
    return (gradient.amax(-1) != 0) | (gradient.amin(-1) != 0)


def gradient_at_linear(activation: Activation, gradient: Tensor, y: Tensor | None) -> Tensor:
    """dL/dy (n, V) of dL/dz. Itself where z = y: not to be written to."""
    if activation.plain:
        return gradient
    at_y = torch.empty_like(gradient)
    for here in pieces(gradient, len(gradient)):
        at_y[here] = activation.back_(gradient[here].to(wide(gradient.dtype), copy=True), None if y is None else y[here])
    return at_y


def feedback_of(
    head: "FeedbackHead", signal: Signal, states: Tensor, gradient: Tensor, y: Tensor | None, bias: Tensor | None, gold: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The signal (n, d) for all rows, and dL/dy (n, V), of dL/dz. y: h W^T + b, where the activation or the signal reads it."""
    at_y = gradient_at_linear(head.activation, gradient, y)
    if not head.reads_logits:
        return signal(Rows(states, at_y)), at_y
    assert y is not None
    found, kind = torch.empty_like(states), wide(at_y.dtype)
    for here in pieces(gradient, len(gradient)):
        known = None if gold is None else gold[here]
        found[here] = by_rows(signal, states[here], gradient[here].to(kind), at_y[here].to(kind), y[here], bias, known)
    return found, at_y


def by_rows(signal: Signal, states: Tensor, at_logits: Tensor, at_y: Tensor, y: Tensor, bias: Tensor | None, gold: Tensor | None) -> Tensor:
    """The signal (n, d) of a few rows: dL/dz, dL/dy, and y."""
    kind = wide(y.dtype)
    return signal(Rows(states, at_y, at_logits, y.to(kind) if bias is None else y.to(kind) - bias.to(kind), gold))
