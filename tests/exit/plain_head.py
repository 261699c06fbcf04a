"""A plain head in float64 with autograd, as the reference for the heads under test."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, linear

from analyzers.exit.heads import HEADS, FeedbackHead, HeadSettings, SpanHead

N, D, V = 33, 12, 101
IGNORED = -100
SETTINGS = HeadSettings(rank=5, rank_exact=2, k=4, anchors=6, seed=3)
Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Case:
    """Hidden states, a head and targets, all in one dtype, by default float32."""

    h: Tensor
    weight: Tensor
    bias: Tensor | None
    targets: Tensor
    scale: float = 1.0
    cap: float | None = None

    @classmethod
    def draw(cls, bias: bool = True, scale: float = 1.0, cap: float | None = None, seed: int = 0, ignored: bool = True) -> "Case":
        """Draw a random case with some ignored tokens, and a bias large enough to show errors in its treatment."""
        random = torch.Generator().manual_seed(seed)
        targets = torch.randint(V, (N,), generator=random)
        if ignored:
            targets[::5] = IGNORED
        h, weight = torch.randn(N, D, generator=random), torch.randn(V, D, generator=random) / 2
        return cls(h, weight, 2 * torch.randn(V, generator=random) if bias else None, targets, scale, cap)

    def to(self, dtype: torch.dtype) -> "Case":
        """Convert to another dtype."""
        return replace(self, h=self.h.to(dtype), weight=self.weight.to(dtype), bias=None if self.bias is None else self.bias.to(dtype))

    def head(self, method: str, settings: HeadSettings = SETTINGS) -> FeedbackHead:
        """Build a head with a copy of the weights."""
        bias = None if self.bias is None else self.bias.clone()
        return HEADS[method](self.weight.clone(), bias, settings, logit_scale=self.scale, softcap=self.cap)

    def anchored_head(self, method: str) -> FeedbackHead:
        """Build a head whose anchors, if it has any, are the same for all calls."""
        head = self.head(method)
        if isinstance(head, SpanHead):
            head.anchor_states = self.h[1:7]
        return head

    def logits(self, h: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Compute the logits as a model does."""
        logits = linear(h, weight, bias)
        logits = logits if self.scale == 1 else logits * self.scale
        return logits if self.cap is None else self.cap * torch.tanh(logits / self.cap)

    def exact(self, loss: Loss) -> tuple[Tensor, Tensor, Tensor | None]:
        """Compute the gradients of h, W and b by autograd in float64."""
        wide = self.to(torch.float64)
        leaves = [each.clone().requires_grad_() for each in (wide.h, wide.weight, wide.bias) if each is not None]
        found = torch.autograd.grad(
            loss(self.logits(leaves[0], leaves[1], leaves[2] if self.bias is not None else None), self.targets), leaves
        )
        return found[0], found[1], found[2] if self.bias is not None else None


CASES = {
    "plain": Case.draw(bias=False),
    "bias": Case.draw(),
    "softcap": Case.draw(cap=3.0),
    "scale": Case.draw(bias=False, scale=0.3),
    "all": Case.draw(scale=-0.7, cap=4.0),
}

_CLASSES = torch.rand(V, generator=torch.Generator().manual_seed(7)) + 0.5
_TEACHER = torch.randn(N, V, generator=torch.Generator().manual_seed(8)).softmax(-1)


def z_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Compute the z-loss of the tokens that are not ignored."""
    return logits[targets != IGNORED].logsumexp(-1).square().mean()


def distillation(logits: Tensor, targets: Tensor) -> Tensor:
    """Compute the KL divergence between a teacher and the head, at a temperature of 2."""
    kept = targets != IGNORED
    return kl_div((logits[kept] / 2).log_softmax(-1), _TEACHER.to(logits.dtype)[kept], reduction="batchmean")


LOSSES: dict[str, Loss] = {
    "mean": cross_entropy,
    "sum": lambda logits, targets: cross_entropy(logits, targets, reduction="sum"),
    "weighted": lambda logits, targets: cross_entropy(logits, targets, weight=_CLASSES.to(logits.dtype)),
    "z-loss": z_loss,
    "distillation": distillation,
}


def along(gradient: Tensor, h: Tensor) -> Tensor:
    """Project each gradient on its h: (n, d)."""
    return (gradient * h).sum(-1, keepdim=True) / h.square().sum(-1, keepdim=True) * h


def distance(found: Tensor | None, expected: Tensor | None) -> float:
    """Return |found - expected| / |expected| over all elements, in float64."""
    assert found is not None and expected is not None and found.shape == expected.shape
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def through(head: FeedbackHead, h: Tensor, loss: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the signal for h by autograd from a loss of the logits. The head's gradients stay on its parameters."""
    leaf = h.clone().requires_grad_()
    torch.autograd.backward(loss(head(leaf)))
    assert leaf.grad is not None
    return leaf.grad


def gradients(head: FeedbackHead) -> Iterator[tuple[str, Tensor]]:
    """Yield the gradients of the head's parameters by name, and remove them from the head."""
    for name, parameter in head.named_parameters():
        assert parameter.grad is not None
        yield name, parameter.grad
        parameter.grad = None
