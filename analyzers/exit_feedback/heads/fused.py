"""Fused cross-entropy of many tokens, with one chunk of logits at a time, overwritten by its own gradient.

The forward pass sums the gradients undivided, so that a mean over many tokens loses nothing in float16; the backward pass scales them.
A second backward pass through the same graph computes the logits again. Axes: N tokens, K of them not ignored, n in a chunk, d width,
V vocabulary.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from analyzers.errors import InvalidRequest
from analyzers.exit_feedback.heads.token_rows import Rows, Signal, SignalSource, pieces, wide

# Number of rows of W's gradient updated at a time, if the sum has a wider dtype than the products.
_BLOCK = 4096


def fused_cross_entropy(
    source: SignalSource,
    kind: torch.dtype,
    h: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    chunk: int,
    mean: bool,
    ignore_index: int,
) -> Tensor:
    """Compute `FeedbackHead.loss` from checked arguments. kind: the dtype of the logits. Raises InvalidRequest for an invalid target."""
    flat = targets.reshape(-1).long()
    live = flat != ignore_index
    index = live.nonzero().squeeze(1)
    gold = flat[index]
    if len(gold):
        least, most = int(gold.min()), int(gold.max())
        if least < 0 or most >= len(weight):
            outside = least if least < 0 else most
            raise InvalidRequest(f"Target {outside} is outside the vocabulary of {len(weight):,}: use {ignore_index} to ignore a token.")
    call = _Call(source, kind, live, index, gold, chunk, mean)
    loss: Tensor = _Fused.apply(h, weight, bias, call, torch.is_grad_enabled())  # type: ignore[no-untyped-call]
    return loss


@dataclass(frozen=True, eq=False, slots=True)
class _Call:
    """One call of the loss. live: (N,) bool, not ignored; index, gold: (K,), the tokens that are not ignored and their targets."""

    source: SignalSource
    kind: torch.dtype
    live: Tensor
    index: Tensor
    gold: Tensor
    chunk: int
    mean: bool

    def run(self, h: Tensor, weight: Tensor, bias: Tensor | None, sums: "_Gradients | None") -> Tensor:
        """Return the sum of the losses, and add its gradients to ``sums``."""
        states, matrix = h.reshape(-1, h.shape[-1]), weight.to(self.kind)
        offset = None if bias is None else bias.to(self.kind)
        own = self.source.own_rows(self.chunk)
        step = max(1, self.chunk - own)
        losses = torch.empty(len(self.gold), dtype=wide(self.kind), device=h.device)
        signal = None
        if sums is not None and sums.h is not None:
            signal = self.source.begin(matrix, states, self.live, max(1, own))
        for first in range(0, len(self.gold), step):
            part = slice(first, first + step)
            rows, gold = states[self.index[part]].to(self.kind), self.gold[part]
            y = linear(rows, matrix, offset)
            feedback = None
            if signal is not None and self.source.reads_logits:
                feedback = torch.empty_like(rows)
            for piece in pieces(y, step):
                given = None if feedback is None or signal is None else (signal, rows[piece], offset, feedback[piece])
                losses[part][piece] = self._loss_and_gradient_(y[piece], gold[piece], sums is not None, given)
            if signal is not None and not self.source.reads_logits:
                feedback = signal(Rows(rows, y))
            if sums is not None:
                sums.add(self.index[part], rows, y, feedback)
            del y  # Frees it before the next chunk is computed.
        return losses.sum()

    def _loss_and_gradient_(
        self, y: Tensor, gold: Tensor, backward: bool, given: tuple[Signal, Tensor, Tensor | None, Tensor] | None
    ) -> Tensor:
        """Return the losses (n,) of a few rows of y and, if ``backward``, overwrite y by dL/dy.

        given: a signal that reads logits, its inputs h and bias, and the tensor for its output.
        """
        activation, places = self.source.activation, gold[:, None]
        precise = y.to(wide(self.kind))
        logits = activation(precise)
        largest, of_gold = logits.amax(-1, keepdim=True), logits.gather(1, places)
        p = (logits - largest).exp_()
        total = p.sum(-1, keepdim=True)
        losses = (largest - of_gold + total.log()).squeeze(1)
        if backward:
            grad_z = p.div_(total).scatter_add_(1, places, -torch.ones_like(total))
            grad_y = activation.backward_(grad_z if given is None or activation.is_identity else grad_z.clone(), precise)
            if given is not None:
                signal, h, bias, feedback = given
                feedback.copy_(signal(Rows(h, grad_y, grad_z, precise, bias, gold, known=True)))
            y.copy_(grad_y)
        return losses


class _Gradients:
    """Sums of the needed gradients among those of h (N, d), W (V, d) and b (V,); W's and b's are float32 at least."""

    def __init__(self, h: Tensor, weight: Tensor, bias: Tensor | None, needed: tuple[bool, ...]) -> None:
        self.shape, self.types = h.shape, tuple(None if each is None else each.dtype for each in (h, weight, bias))
        self.h = torch.zeros_like(h, memory_format=torch.contiguous_format).view(-1, h.shape[-1]) if needed[0] else None
        self.weight = torch.zeros_like(weight, dtype=wide(weight.dtype)) if needed[1] else None
        self.bias = torch.zeros_like(bias, dtype=wide(bias.dtype)) if bias is not None and needed[2] else None

    def add(self, index: Tensor, rows: Tensor, grad_y: Tensor, feedback: Tensor | None) -> None:
        """Add a chunk. index: (n,), its tokens; rows: their h (n, d); grad_y: dL/dy (n, V); feedback: the signal (n, d)."""
        if self.h is not None and feedback is not None:
            self.h[index] = feedback.to(self.h.dtype)
        if self.weight is not None and grad_y.dtype == self.weight.dtype:
            self.weight.addmm_(grad_y.mT, rows)
        elif self.weight is not None:
            for first in range(0, len(self.weight), _BLOCK):
                self.weight[first : first + _BLOCK] += grad_y[:, first : first + _BLOCK].mT @ rows
        if self.bias is not None:
            self.bias += grad_y.sum(0, dtype=self.bias.dtype)

    def scaled(self, scale: Tensor, live: Tensor) -> tuple[Tensor | None, ...]:
        """Return all gradients times ``scale``, in the dtypes and shapes of their tensors, overwriting the sums.

        live: (N,) bool; ignored tokens get 0 even if the scale has overflowed.
        """
        for_h, for_weight, for_bias = (
            None if total is None else total.mul_(scale).to(kind)
            for total, kind in zip((self.h, self.weight, self.bias), self.types, strict=True)
        )
        return None if for_h is None else for_h.masked_fill_(~live[:, None], 0).view(self.shape), for_weight, for_bias


class _Fused(torch.autograd.Function):
    """The loss as a function of h (..., d), W (V, d), b (V,) and a `_Call`."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, weight: Tensor, bias: Tensor | None, call: _Call, graph: bool) -> Tensor:
        """Compute the loss and, if there may be a backward pass, its gradients."""
        ctx.call = call
        ctx.save_for_backward(h, weight, bias)
        ctx.sums = _Gradients(h, weight, bias, ctx.needs_input_grad[:3]) if graph and any(ctx.needs_input_grad[:3]) else None
        with torch.autocast(h.device.type, enabled=False):
            total = call.run(h, weight, bias, ctx.sums)
        return total / len(call.gold) if call.mean else total

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        """Scale the sums of the forward pass.

        Saved tensors are unpacked only for a second backward pass, because under checkpointing unpacking recomputes them. Raises
        RuntimeError under create_graph: the sums are not differentiable with respect to h and W.
        """
        if torch.is_grad_enabled():
            raise RuntimeError("head.loss has no second derivative (create_graph): use a plain linear head where you need one.")
        call: _Call = ctx.call
        sums: _Gradients | None = ctx.sums
        ctx.sums = None
        if sums is None:
            h, weight, bias = ctx.saved_tensors
            sums = _Gradients(h, weight, bias, ctx.needs_input_grad[:3])
            with torch.autocast(h.device.type, enabled=False):
                call.run(h, weight, bias, sums)
        scale = upstream / max(1, len(call.gold)) if call.mean else upstream
        return *sums.scaled(scale, call.live), None, None
