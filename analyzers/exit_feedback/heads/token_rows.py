"""What a signal is computed from, a few tokens at a time, and the operations that methods share.

Axes: N tokens, n of them at a time, d width, V vocabulary, k chosen tokens of the vocabulary, r columns of a table.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from analyzers.errors import InvalidRequest
from analyzers.exit_feedback.signals import is_number, shown


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type of losses and of sums over the vocabulary: float32, float64 for float64."""
    return torch.promote_types(dtype, torch.float32)


@dataclass(frozen=True, slots=True)
class Activation:
    """z = cap tanh(scale y / cap), or scale y without a cap; y = h W^T + b. Raises InvalidRequest for an invalid scale or cap."""

    scale: float = 1.0
    cap: float | None = None

    def __post_init__(self) -> None:
        if not is_number(self.scale) or self.scale == 0:
            raise InvalidRequest(f"The scale of the logits must be a finite number other than 0, not {shown(self.scale)}.")
        if self.cap is not None and not (is_number(self.cap) and self.cap > 0):
            raise InvalidRequest(f"The softcap of the logits must be a finite number above 0, not {shown(self.cap)}.")

    @property
    def is_identity(self) -> bool:
        """z = y."""
        return self.scale == 1 and self.cap is None

    def __call__(self, y: Tensor) -> Tensor:
        """Logits, by the same operations as the plain model's, so that they are bit-identical."""
        scaled = y if self.scale == 1 else y * self.scale
        return scaled if self.cap is None else self.cap * torch.tanh(scaled / self.cap)

    def backward_(self, gradient: Tensor, y: Tensor | None) -> Tensor:
        """dL/dy = dL/dz scale (1 - (z / cap)^2), in place of dL/dz. y is needed under a cap. 0 stays 0, also where y is not finite."""
        if self.cap is not None:
            assert y is not None
            slope = (y.to(gradient.dtype) * (self.scale / self.cap)).tanh_()
            slope.masked_fill_(gradient == 0, 0)
            gradient.addcmul_(gradient, slope.square_(), value=-1)
        return gradient if self.scale == 1 else gradient.mul_(self.scale)


@dataclass(slots=True)
class Rows:
    """h: (n, d); grad_y: dL/dy of y = h W^T + b, (n, V). Read-only.

    Where the head ``reads_logits``, with both gradients in float32 at least: grad_z: dL/dz, (n, V); y: (n, V); bias: (V,) or None;
    gold: target tokens, (n,), -1 where unknown, None where all are; known: all are known.
    """

    h: Tensor
    grad_y: Tensor
    grad_z: Tensor | None = None
    y: Tensor | None = None
    bias: Tensor | None = None
    gold: Tensor | None = None
    known: bool = False

    def gold_tokens(self) -> Tensor:
        """(n,). Where unknown, the token with the largest |dL/dz|: for cross-entropy that is the target, as |p_y - 1| is the sum of all
        others. Where another token has all the probability both are equal, and the negative one is the target.
        """
        if self.known and self.gold is not None:
            return self.gold
        assert self.grad_z is not None
        (low, at_low), (high, at_high) = self.grad_z.min(-1), self.grad_z.max(-1)
        guess = torch.where(-low >= high, at_low, at_high)
        return guess if self.gold is None else torch.where(self.gold >= 0, self.gold, guess)

    def with_gold(self, index: Tensor, included: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The gold token and those of ``index`` (n, k): (n, 1 + k), and dL/dy there, 0 for a repeated gold and those not ``included``."""
        gold = self.gold_tokens()[:, None]
        dropped = index == gold if included is None else (index == gold) | ~included
        values = self.grad_y.gather(1, index).masked_fill_(dropped, 0)
        return torch.cat([gold, index], 1), torch.cat([self.grad_y.gather(1, gold), values], 1)

    def direction(self) -> Tensor:
        """h / |h|, zero for h = 0, float32 at least: (n, d). Scaled first, so that squares neither underflow nor overflow."""
        states = self.h.to(wide(self.h.dtype))
        scale = states.abs().amax(-1, keepdim=True)
        scaled = states / torch.where(scale == 0, 1, scale)
        length = torch.linalg.vector_norm(scaled, dim=-1, keepdim=True)
        return scaled / torch.where(scale == 0, 1, length)


Signal = Callable[[Rows], Tensor]
"""A method during one call: the signal (n, d) of some rows, in any float type."""


class SignalSource(ABC):
    """What a backward pass needs of a head.

    reads_logits: whether the signal needs the logits as well as their gradient: it is then computed a few rows at a time.
    """

    reads_logits: ClassVar[bool] = False
    activation: Activation

    @abstractmethod
    def begin(self, weight: Tensor, h: Tensor, live: Tensor, rows: int) -> Signal:
        """The signal for one call.

        weight: (V, d) in the type of the computation; h: (N, d), all hidden states; live: (N,) bool, the tokens that have a gradient; rows:
        rows of logits that it may compute at once.
        """

    def own_rows(self, chunk: int) -> int:
        """Of ``chunk`` rows of logits that may exist at once, how many the signal needs for itself."""
        return 0


def weighted_rows(table: Tensor, index: Tensor, weights: Tensor) -> Tensor:
    """sum_j weights_nj table[index_nj]: (V, r), (n, k), (n, k) to (n, r), in the type of the weights.

    A product with the whole table where many rows of it are needed, which bounds the gathered (n, k, r) array.
    """
    if 16 * index.shape[1] >= len(table):
        spread = weights.new_zeros(len(index), len(table)).scatter_add_(1, index, weights)
        return spread @ table.to(weights.dtype)
    return (weights[:, None] @ table[index].to(weights.dtype)).squeeze(1)


def pieces(logits: Tensor, at_most: int) -> list[slice]:
    """The rows of (n, V) a few at a time: a small part of ``at_most``, so that temporaries stay small, but enough of them for speed."""
    rows, vocabulary = logits.shape
    step = max(1, at_most // (8 if logits.is_cuda else 32), (1 << 18) // max(1, vocabulary))
    return [slice(first, min(first + step, rows)) for first in range(0, rows, step)]
