"""The inputs of a signal, some tokens at a time, and the operations that methods share.

Axes: N tokens, n of them at a time, d width, V vocabulary, k chosen tokens of the vocabulary, r columns of a table.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from analyzers.exit_feedback.heads.activation import Activation, wide

# Elements of a table gathered at once.
_GATHERED = 1 << 22
# Neighbouring values of which only the largest is compared first.
_BLOCK = 64


@dataclass(slots=True)
class Rows:
    """h: (n, d); grad_y: dL/dy of y = h W^T + b, (n, V). Read only.

    Where the head ``reads_logits`` also, with both gradients in float32 at least: grad_z: dL/dz, (n, V); y: (n, V); bias: (V,) or None;
    gold: target tokens, (n,), -1 where unknown, None where all are.
    """

    h: Tensor
    grad_y: Tensor
    grad_z: Tensor | None = None
    y: Tensor | None = None
    bias: Tensor | None = None
    gold: Tensor | None = None

    def gold_tokens(self) -> Tensor:
        """(n,). Where unknown, the token of the largest |dL/dz|; for cross-entropy it is the target: |p_y - 1| is the sum of all others.

        It is equal to another one where that has all the probability; then the negative one is the target.
        """
        if self.gold is not None and bool((self.gold >= 0).all()):
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


class SignalSource(Protocol):
    """What the backward passes ask of a head."""

    activation: Activation

    @property
    def reads_logits(self) -> bool:
        """The signal needs the logits as well as their gradient, and so is asked for a few rows at a time, while both exist."""

    def begin(self, weight: Tensor, h: Tensor, live: Tensor, rows: int) -> Signal:
        """The signal for one call.

        weight: (V, d) in the type of the computation; h: (N, d), all hidden states; live: (N,) bool, the tokens that have a gradient; rows:
        rows of logits that it may compute at once.
        """

    def own_rows(self, chunk: int) -> int:
        """Of ``chunk`` rows of logits that may exist at once, how many the signal needs for itself."""


def largest(values: Tensor, k: int) -> Tensor:
    """Indices of the k largest of each row in descending order: (n, V) to (n, k).

    They are in the k blocks with the largest maxima, so that only those are sorted: several times faster than ``topk`` of all on a CPU.
    """
    blocks = values.shape[1] // _BLOCK
    if blocks <= 4 * k:
        return values.topk(k, -1).indices
    tail = torch.arange(blocks * _BLOCK, values.shape[1], device=values.device).expand(len(values), -1)
    chosen = values[:, : blocks * _BLOCK].view(len(values), blocks, _BLOCK).amax(-1).topk(k, -1).indices
    within = chosen[:, :, None] * _BLOCK + torch.arange(_BLOCK, device=values.device)
    index = torch.cat([within.flatten(1), tail], 1)
    return index.gather(1, values.gather(1, index).topk(k, -1).indices)


def weighted_rows(table: Tensor, index: Tensor, weights: Tensor) -> Tensor:
    """sum_j weights_nj table[index_nj]: (V, r), (n, k), (n, k) to (n, r), in the type of the weights.

    Without an (n, k, r) array; a product with the whole table where most of it is needed.
    """
    if 16 * index.shape[1] >= len(table):
        spread = weights.new_zeros(len(index), len(table)).scatter_add_(1, index, weights)
        return spread @ table.to(weights.dtype)
    total = weights.new_zeros(len(index), table.shape[1])
    step = max(1, _GATHERED // max(1, total.numel()))
    for first in range(0, index.shape[1], step):
        part = slice(first, first + step)
        total += (weights[:, None, part] @ table[index[:, part]].to(weights.dtype)).squeeze(1)
    return total


def pieces(logits: Tensor, at_most: int) -> list[slice]:
    """The rows of (n, V) a few at a time: a small part of ``at_most``, so that temporaries stay small, but enough of them for speed."""
    rows, vocabulary = logits.shape
    step = max(1, at_most // 32, (1 << 18) // max(1, vocabulary))
    return [slice(first, min(first + step, rows)) for first in range(0, rows, step)]
