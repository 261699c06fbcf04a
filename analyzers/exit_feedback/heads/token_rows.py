"""Inputs of a signal for a few tokens at a time, and operations that methods share.

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
    """Return the dtype of losses and of sums over the vocabulary: float64 for float64, else float32."""
    return torch.promote_types(dtype, torch.float32)


@dataclass(frozen=True, slots=True)
class Activation:
    """The map from y = h W^T + b to logits, z = cap tanh(scale y / cap), or scale y without a cap.

    Raises InvalidRequest for an invalid scale or cap.
    """

    scale: float = 1.0
    cap: float | None = None

    def __post_init__(self) -> None:
        if not is_number(self.scale) or self.scale == 0:
            raise InvalidRequest(f"The scale of the logits must be a finite number other than 0, not {shown(self.scale)}.")
        if self.cap is not None and not (is_number(self.cap) and self.cap > 0):
            raise InvalidRequest(f"The softcap of the logits must be a finite number above 0, not {shown(self.cap)}.")

    @property
    def is_identity(self) -> bool:
        """Whether z = y."""
        return self.scale == 1 and self.cap is None

    def __call__(self, y: Tensor) -> Tensor:
        """Compute logits by the operations of the plain model, so that they are bit-identical."""
        scaled = y if self.scale == 1 else y * self.scale
        return scaled if self.cap is None else self.cap * torch.tanh(scaled / self.cap)

    def backward_(self, gradient: Tensor, y: Tensor | None) -> Tensor:
        """Overwrite dL/dz by dL/dy = dL/dz scale (1 - (z / cap)^2). y: needed under a cap. 0 stays 0, even if y is not finite."""
        if self.cap is not None:
            assert y is not None
            slope = (y.to(gradient.dtype) * (self.scale / self.cap)).tanh_()
            slope.masked_fill_(gradient == 0, 0)
            gradient.addcmul_(gradient, slope.square_(), value=-1)
        return gradient if self.scale == 1 else gradient.mul_(self.scale)


@dataclass(slots=True)
class Rows:
    """Read-only inputs of a signal for n tokens. h: (n, d); grad_y: dL/dy of y = h W^T + b, (n, V).

    Only if the head ``reads_logits``, and then with gradients in float32 at least: grad_z: dL/dz, (n, V); y: (n, V); bias: (V,) or None;
    gold: target tokens, (n,), -1 if unknown, None if all are unknown; known: whether all are known.
    """

    h: Tensor
    grad_y: Tensor
    grad_z: Tensor | None = None
    y: Tensor | None = None
    bias: Tensor | None = None
    gold: Tensor | None = None
    known: bool = False

    def gold_tokens(self) -> Tensor:
        """Return the gold tokens (n,); the token with the largest |dL/dz| if unknown.

        For cross-entropy that is the target, because |p_y - 1| is the sum of all other |dL/dz|. If another token has all the probability,
        both are equal, and the target is the one with the negative gradient.
        """
        if self.known and self.gold is not None:
            return self.gold
        assert self.grad_z is not None
        (low, at_low), (high, at_high) = self.grad_z.min(-1), self.grad_z.max(-1)
        guess = torch.where(-low >= high, at_low, at_high)
        return guess if self.gold is None else torch.where(self.gold >= 0, self.gold, guess)

    def with_gold(self, index: Tensor, included: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the gold token followed by those of ``index`` (n, k), (n, 1 + k), and their dL/dy.

        dL/dy is 0 for a repeated gold token and for tokens not ``included``.
        """
        gold = self.gold_tokens()[:, None]
        dropped = index == gold if included is None else (index == gold) | ~included
        values = self.grad_y.gather(1, index).masked_fill_(dropped, 0)
        return torch.cat([gold, index], 1), torch.cat([self.grad_y.gather(1, gold), values], 1)

    def direction(self) -> Tensor:
        """Return h / |h| (n, d), float32 at least, 0 for h = 0. h is scaled first, so that squares neither underflow nor overflow."""
        states = self.h.to(wide(self.h.dtype))
        scale = states.abs().amax(-1, keepdim=True)
        scaled = states / torch.where(scale == 0, 1, scale)
        length = torch.linalg.vector_norm(scaled, dim=-1, keepdim=True)
        return scaled / torch.where(scale == 0, 1, length)


Signal = Callable[[Rows], Tensor]
"""Function of one call that computes the signal (n, d) of some rows, in any float dtype."""


class SignalSource(ABC):
    """Interface of a head for the backward pass.

    reads_logits: whether the signal reads the logits in addition to their gradient; it is then computed for a few rows at a time.
    """

    reads_logits: ClassVar[bool] = False
    activation: Activation

    @abstractmethod
    def begin(self, weight: Tensor, h: Tensor, live: Tensor, rows: int) -> Signal:
        """Return the signal function for one call.

        weight: (V, d) in the dtype of the computation; h: (N, d), all hidden states; live: (N,) bool, tokens with a gradient; rows: number
        of rows of logits that the signal may compute at once.
        """

    def own_rows(self, chunk: int) -> int:
        """Return how many of the ``chunk`` rows of logits that may exist at once the signal needs for itself."""
        return 0


def weighted_rows(table: Tensor, index: Tensor, weights: Tensor) -> Tensor:
    """Compute sum_j weights_nj table[index_nj] (n, r), in the dtype of the weights. table: (V, r); index, weights: (n, k).

    If k is large, a product with the whole table replaces the gathered (n, k, r) array and bounds its memory.
    """
    if 16 * index.shape[1] >= len(table):
        spread = weights.new_zeros(len(index), len(table)).scatter_add_(1, index, weights)
        return spread @ table.to(weights.dtype)
    return (weights[:, None] @ table[index].to(weights.dtype)).squeeze(1)


def pieces(logits: Tensor, at_most: int) -> list[slice]:
    """Slice the rows of (n, V) into pieces: a small part of ``at_most`` rows, so that temporaries stay small, but enough for speed."""
    rows, vocabulary = logits.shape
    step = max(1, at_most // (8 if logits.is_cuda else 32), (1 << 18) // max(1, vocabulary))
    return [slice(first, min(first + step, rows)) for first in range(0, rows, step)]
