"""Base class of all methods: a drop-in replacement for the linear head of a language model.

z = cap tanh(scale (h W^T + b) / cap), without a cap z = scale (h W^T + b). The backward pass gives W and b their exact gradients, and h the
signal of the method in place of (dL/dy) W, y = h W^T + b. Axes: n tokens, d width, V vocabulary.
"""

from abc import abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from analyzers.exit.heads.token_rows import Rows
from analyzers.exit.signals import HeadSettings

IGNORED = -100
"""Target of tokens without a loss, as in torch."""


class FeedbackHead(nn.Module):
    """A head whose hidden states get the signal of a ``method``. The state dict is that of a plain head: weight, bias.

    reads_logits: whether the signal reads the logits in addition to their gradient.
    """

    method: ClassVar[str]
    reads_logits: ClassVar[bool] = False

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        settings: HeadSettings | None = None,
        *,
        logit_scale: float = 1.0,
        softcap: float | None = None,
    ) -> None:
        """Build the head. weight: (V, d); bias: (V,).

        A Parameter is shared, so that tied embeddings stay tied; any other tensor is wrapped without a copy. Raises InvalidRequest for
        settings that do not fit the weight.
        """
        super().__init__()
        self.settings = (settings or HeadSettings()).resolved(self.method, *weight.shape)
        self.scale, self.cap = logit_scale, softcap
        self.weight = weight if isinstance(weight, nn.Parameter) else nn.Parameter(weight)
        self.register_parameter("bias", bias if bias is None or isinstance(bias, nn.Parameter) else nn.Parameter(bias))

    @abstractmethod
    def feedback(self, rows: Rows) -> Tensor:
        """Compute the signal (n, d) of some tokens."""

    def forward(self, h: Tensor) -> Tensor:
        """Compute logits (..., V) for h (..., d), bit-identical to the plain head's; differentiable once.

        Without targets, the token with the largest |dL/dz| counts as the gold token.
        """
        with torch.autocast(h.device.type, enabled=False):
            logits: Tensor = _Logits.apply(h.to(self.weight.dtype), self.weight, self.bias, self)  # type: ignore[no-untyped-call]
        return logits

    def loss(self, h: Tensor, targets: Tensor, *, chunk: int = 512) -> Tensor:
        """Compute the mean cross-entropy (nats) of h (..., d) with targets (...), with at most ``chunk`` rows of logits at a time.

        Tokens with the target `IGNORED` have no effect, whatever their values. The loss, and sums over chunks, are float32 at least.
        """
        counted = targets != IGNORED
        states = h[counted].to(self.weight.dtype)
        with torch.autocast(h.device.type, enabled=False):
            loss: Tensor = _ChunkedLoss.apply(states, self.weight, self.bias, self, targets[counted], chunk)  # type: ignore[no-untyped-call]
        return loss

    @torch.no_grad()
    def signal(self, h: Tensor, grad_z: Tensor, gold: Tensor | None = None) -> Tensor:
        """Compute the signal for h (n, d) from the gradient (n, V) of a loss with respect to its logits. gold: (n,), the target tokens.

        Tokens whose gradient is 0 get exactly 0.
        """
        y = linear(h, self.weight, self.bias) if self.reads_logits or self.cap is not None else None
        return self.gradients(h, grad_z, y, gold)[0]

    def logits(self, y: Tensor) -> Tensor:
        """Compute logits by the operations of the plain model, so that they are bit-identical."""
        scaled = y if self.scale == 1 else y * self.scale
        return scaled if self.cap is None else self.cap * torch.tanh(scaled / self.cap)

    def gradients(self, h: Tensor, grad_z: Tensor, y: Tensor | None, gold: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the signal (n, d) and dL/dy (n, V). y: needed if the head ``reads_logits`` or has a cap."""
        live = (grad_z.amax(-1) != 0) | (grad_z.amin(-1) != 0)  # `any` takes five times as long
        grad_y = grad_z if self.scale == 1 else grad_z * self.scale
        if self.cap is not None:
            assert y is not None
            slope = 1 - torch.tanh(y * (self.scale / self.cap)).square_()
            grad_y = grad_y * slope.masked_fill_(grad_z == 0, 0)  # y of a token without a gradient may be NaN
        rows = Rows(h.masked_fill(~live[:, None], 0), grad_z, grad_y, live, y, gold)
        return self.feedback(rows).masked_fill(~live[:, None], 0), grad_y


def logit_gradient(logits: Tensor, gold: Tensor) -> tuple[Tensor, Tensor]:
    """Return dL/dz (n, V) for the sum of the tokens' cross-entropies, and the cross-entropies (n,)."""
    log_p = torch.log_softmax(logits, -1)
    losses = -log_p.gather(-1, gold[:, None]).squeeze(-1)
    gradient = log_p.exp_()
    # p - 1 of a nearly certain token would lose all its digits to rounding; expm1 of the loss does not.
    gradient[torch.arange(len(gold), device=gold.device), gold] = torch.expm1(-losses)
    return gradient, losses


class _Logits(torch.autograd.Function):
    """Logits (..., V) for h (..., d), W (V, d) and b (V,), whose backward pass gives h the signal of ``head``."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, weight: Tensor, bias: Tensor | None, head: FeedbackHead) -> Tensor:
        y = linear(h, weight, bias)
        ctx.head = head
        ctx.save_for_backward(h, y if head.reads_logits or head.cap is not None else None)
        return head.logits(y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        h, y = ctx.saved_tensors
        states, grad_z = h.reshape(-1, h.shape[-1]), gradient.reshape(-1, gradient.shape[-1])
        signal, grad_y = ctx.head.gradients(states, grad_z, None if y is None else y.view(grad_z.shape), None)
        of_weight = of_bias = None
        if ctx.needs_input_grad[1]:
            states = states.masked_fill(~grad_z.any(-1, keepdim=True), 0)  # hidden states of padding may be NaN
            of_weight = grad_y.mT @ states
        if ctx.needs_input_grad[2]:
            of_bias = grad_y.sum(0)
        return signal.view(h.shape), of_weight, of_bias, None


class _ChunkedLoss(torch.autograd.Function):
    """The mean cross-entropy of h (n, d), chunk by chunk: the forward pass sums the gradients, the backward pass scales them, once."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, weight: Tensor, bias: Tensor | None, head: FeedbackHead, targets: Tensor, chunk: int) -> Tensor:
        wide = torch.promote_types(h.dtype, torch.float32)  # each part of a sum in bfloat16 would lose up to half of the last of its 8 bits
        of_h, of_weight = torch.empty_like(h), torch.zeros_like(weight, dtype=wide)
        of_bias = None if bias is None else torch.zeros_like(bias, dtype=wide)
        total = h.new_zeros((), dtype=wide)
        for rows, gold, signal in zip(*(torch.split(each, chunk) for each in (h, targets, of_h)), strict=True):
            y = linear(rows, weight, bias)
            grad_z, losses = logit_gradient(head.logits(y.to(wide)), gold)
            of_rows, grad_y = head.gradients(rows, grad_z.to(h.dtype), y, gold)
            signal.copy_(of_rows)
            of_weight += grad_y.mT @ rows
            if of_bias is not None:
                of_bias += grad_y.sum(0, dtype=wide)
            total += losses.sum()
            del y, grad_z, grad_y  # frees them before the next chunk is computed
        ctx.gradients, ctx.kind = (of_h, of_weight, of_bias), h.dtype
        ctx.count = len(targets)
        return total / len(targets)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:
            raise RuntimeError("head.loss is differentiable once: compute it again.")
        scale = upstream / max(1, ctx.count)
        return *(None if each is None else each.mul_(scale).to(ctx.kind) for each in gradients), None, None, None
