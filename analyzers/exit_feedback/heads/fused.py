"""``head.loss``: cross-entropy of many tokens, some rows of logits at a time, which turn into their own gradient where they stand.

Where one number comes out (mean, sum) the gradients are summed on the way forward, undivided, so that nothing of them is lost to a small
mean in float16, and scaled on the way back by what the loss is multiplied with. Where each token has its loss, or the graph is gone through
a second time, the way back computes the logits again. Axes: N tokens, n of them in a chunk, d width, V vocabulary.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from analyzers.errors import InvalidRequest
from analyzers.exit_feedback.heads.activation import wide
from analyzers.exit_feedback.heads.rows import Rows, Signal, pieces
from analyzers.exit_feedback.heads.through import by_rows

if TYPE_CHECKING:
    from analyzers.exit_feedback.heads.head import FeedbackHead

# Rows of W's gradient that are added to at once, where it is summed in a longer type than it is computed in.
_BLOCK = 4096


def fused_cross_entropy(
    head: "FeedbackHead",
    kind: torch.dtype,
    h: Tensor,
    targets: Tensor,
    chunk: int,
    reduction: str,
    ignore_index: int,
    weight: Tensor | None,
) -> Tensor:
    """`FeedbackHead.loss`, its arguments checked. kind: the type that logits are computed in."""
    flat = targets.reshape(-1).long()
    kept = flat != ignore_index
    index = kept.nonzero().squeeze(1)
    gold = flat[index]
    if len(gold):
        least, most = (int(each) for each in torch.stack(torch.aminmax(gold)).tolist())
        if least < 0 or most >= len(head.weight):
            outside = least if least < 0 else most
            raise InvalidRequest(
                f"Target {outside} is outside the vocabulary of {len(head.weight):,}: use {ignore_index} to ignore a token."
            )
    run = _Run(head, kind, kept, index, gold, chunk, reduction, None if weight is None else weight.detach())
    losses: Tensor = _Fused.apply(h, head.weight, head.bias, run, torch.is_grad_enabled())  # type: ignore[no-untyped-call]
    return losses.view(targets.shape) if reduction == "none" else losses


class _Run:
    """One call: which tokens, and how they are weighed."""

    def __init__(
        self,
        head: "FeedbackHead",
        kind: torch.dtype,
        kept: Tensor,
        index: Tensor,
        gold: Tensor,
        chunk: int,
        reduction: str,
        classes: Tensor | None,
    ) -> None:
        self.head, self.kind, self.kept, self.index, self.gold, self.reduction = head, kind, kept, index, gold, reduction
        precise = wide(kind)
        self.weights = torch.ones(len(gold), dtype=precise, device=gold.device) if classes is None else classes.to(precise)[gold]
        self.total = self.weights.sum()
        own = head.own_rows(chunk)
        self.rows, self.own = max(1, chunk - own), max(1, own)

    def scale(self, upstream: Tensor) -> Tensor:
        """What the sum over tokens is multiplied with in the end: the gradient of the loss, over its denominator; 0 where that is 0."""
        if self.reduction != "mean":
            return upstream
        return torch.where(self.total != 0, upstream / self.total, 0)

    def chunks(self, h: Tensor, weight: Tensor, bias: Tensor | None, factors: Tensor, backwards: "_Gradients | None") -> Tensor:
        """Losses of the kept tokens (K,) times their weights; into ``backwards`` the gradients of their sum, each times its factor (K,)."""
        states, precise = h.reshape(-1, h.shape[-1]), wide(self.kind)
        matrix, offset = weight.to(self.kind), None if bias is None else bias.to(self.kind)
        losses = torch.empty(len(self.gold), dtype=precise, device=h.device)
        signal = None
        if backwards is not None and backwards.h is not None:
            signal = self.head.begin(matrix, states, self.kept, self.own)
        for first in range(0, len(self.gold), self.rows):
            here = slice(first, first + self.rows)
            rows = states[self.index[here]].to(self.kind)
            logits = linear(rows, matrix, offset)
            found = self._turn(logits, rows, offset, here, losses, factors, signal, backwards is not None)
            if backwards is not None:
                if signal is not None and found is None:
                    found = signal(Rows(rows, logits))
                backwards.add(self.index[here], rows, logits, found)
            del logits  # before the next are computed
        return losses

    def _turn(
        self,
        y: Tensor,
        rows: Tensor,
        bias: Tensor | None,
        here: slice,
        losses: Tensor,
        factors: Tensor,
        signal: Signal | None,
        backwards: bool,
    ) -> Tensor | None:
        """Losses of y (n, V), which becomes their gradient; and the signal, if it is one that reads logits."""
        activation, precise = self.head.activation, wide(self.kind)
        gold, weights, factor = self.gold[here, None], self.weights[here], factors[here]
        found = torch.empty_like(rows) if signal is not None and self.head.reads_logits else None
        kept_losses = losses[here]
        for piece in pieces(y, self.rows):
            part = y[piece].to(precise)
            logits = activation(part)
            largest = logits.amax(-1, keepdim=True)
            chosen = logits.gather(1, gold[piece])
            p = (logits - largest).exp_()
            total = p.sum(-1, keepdim=True)
            kept_losses[piece] = (weights[piece, None] * (largest - chosen + total.log())).squeeze(1)
            if not backwards:
                continue
            size = (weights[piece] * factor[piece])[:, None]
            p.mul_(size / total)
            p.scatter_add_(1, gold[piece], -size)
            at_y = p if activation.plain else activation.back_(p.clone() if found is not None else p, part)
            if found is not None and signal is not None:
                found[piece] = by_rows(signal, rows[piece], p, at_y, part, bias, gold[piece, 0])
            y[piece] = at_y
        return found


class _Gradients:
    """Sums of the gradients of h (N, d), W (V, d) and b (V,), those that are needed; of W and b in float32 at least."""

    def __init__(self, h: Tensor, weight: Tensor, bias: Tensor | None, needed: tuple[bool, ...]) -> None:
        self.shape, self.types = h.shape, tuple(None if each is None else each.dtype for each in (h, weight, bias))
        self.h = torch.zeros_like(h, memory_format=torch.contiguous_format).view(-1, h.shape[-1]) if needed[0] else None
        self.weight = torch.zeros_like(weight, dtype=wide(weight.dtype)) if needed[1] else None
        self.bias = torch.zeros_like(bias, dtype=wide(bias.dtype)) if bias is not None and needed[2] else None

    def add(self, index: Tensor, rows: Tensor, at_y: Tensor, signal: Tensor | None) -> None:
        """A chunk: which tokens, their h (n, d), dL/dy (n, V) and the signal (n, d)."""
        if self.h is not None and signal is not None:
            self.h[index] = signal.to(self.h.dtype)
        if self.weight is not None and at_y.dtype == self.weight.dtype:
            self.weight.addmm_(at_y.mT, rows)
        elif self.weight is not None:
            for first in range(0, len(self.weight), _BLOCK):
                here = slice(first, first + _BLOCK)
                self.weight[here] += at_y[:, here].mT @ rows
        if self.bias is not None:
            self.bias += at_y.sum(0, dtype=self.bias.dtype)

    def scaled(self, scale: Tensor, kept: Tensor) -> tuple[Tensor | None, ...]:
        """All of them times a number, in the types and shapes of what they are gradients of. The sums are used up.

        kept: (N,) bool; a scale that has overflowed must not reach the h of other tokens.
        """
        for_h, for_weight, for_bias = (
            None if total is None else total.mul_(scale).to(kind)
            for total, kind in zip((self.h, self.weight, self.bias), self.types, strict=True)
        )
        return None if for_h is None else for_h.masked_fill_(~kept[:, None], 0).view(self.shape), for_weight, for_bias


class _Fused(torch.autograd.Function):
    """Loss of h (..., d), W (V, d), b (V,) and a `_Run`: a number, or (N,) where the reduction is "none"."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, weight: Tensor, bias: Tensor | None, run: _Run, graph: bool) -> Tensor:
        """With a graph to be gone back through, and one number as result, the gradients too."""
        needed = ctx.needs_input_grad[:3]
        ctx.run = run
        ctx.sums = _Gradients(h, weight, bias, needed) if graph and any(needed) and run.reduction != "none" else None
        ctx.save_for_backward(h, weight, bias)
        with torch.autocast(h.device.type, enabled=False):
            losses = run.chunks(h, weight, bias, torch.ones_like(run.weights), ctx.sums)
        if run.reduction == "none":
            return losses.new_zeros(len(run.kept)).index_copy_(0, run.index, losses)
        return losses.sum() if run.reduction == "sum" else losses.sum() / run.total

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        """Scales the sums, or computes them. What was saved is asked for only then: under checkpointing asking computes it anew.

        With a graph of its own (create_graph) it raises: a second derivative would lack all that h and W did to these sums.
        """
        if torch.is_grad_enabled():
            raise RuntimeError("head.loss has no second derivative (create_graph): use a plain linear head where you need one.")
        run: _Run = ctx.run
        sums: _Gradients | None = ctx.sums
        ctx.sums = None
        scale = run.scale(upstream)
        if sums is None:
            h, weight, bias = ctx.saved_tensors
            sums = _Gradients(h, weight, bias, ctx.needs_input_grad[:3])
            factors = scale.reshape(-1)[run.index] if run.reduction == "none" else torch.ones_like(run.weights)
            with torch.autocast(h.device.type, enabled=False):
                run.chunks(h, weight, bias, factors, sums)
        if run.reduction == "none":
            scale = torch.ones_like(run.total)
        return *sums.scaled(scale, run.kept), None, None
