"""Inputs of a signal for some tokens, and operations that methods share.

Axes: n tokens, d width, V vocabulary, k chosen tokens of the vocabulary, r columns of a table.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag, normalize


@dataclass(frozen=True, eq=False, slots=True)
class Rows:
    """Read-only inputs of a signal for n tokens. h: (n, d); grad_z, grad_y: dL/dz of the logits and dL/dy of y = h W^T + b, (n, V).

    live: (n,) bool, tokens whose gradient is not 0. y: (n, V), only if the head ``reads_logits``. gold: (n,), the target tokens if known.
    """

    h: Tensor
    grad_z: Tensor
    grad_y: Tensor
    live: Tensor
    y: Tensor | None
    gold: Tensor | None

    def gold_tokens(self) -> Tensor:
        """Return the gold tokens (n,); the token with the largest |dL/dz| if unknown.

        For cross-entropy that is the target, because |p_y - 1| is the sum of all other |dL/dz|. If another token has all the probability,
        both are equal, and the target is the one with the negative gradient.
        """
        if self.gold is not None:
            return self.gold
        (low, at_low), (high, at_high) = self.grad_z.min(-1), self.grad_z.max(-1)
        return torch.where(-low >= high, at_low, at_high)

    def with_gold(self, index: Tensor, included: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the gold token followed by those of ``index`` (n, k), (n, 1 + k), and their dL/dy.

        dL/dy is 0 for a repeated gold token and for tokens not ``included``.
        """
        gold = self.gold_tokens()[:, None]
        dropped = index == gold if included is None else (index == gold) | ~included
        values = self.grad_y.gather(1, index).masked_fill_(dropped, 0)
        return torch.cat([gold, index], 1), torch.cat([self.grad_y.gather(1, gold), values], 1)

    def direction(self) -> Tensor:
        """Return h / |h| (n, d), 0 for h = 0."""
        return normalize(self.h, dim=-1, eps=torch.finfo(self.h.dtype).tiny)


def weighted_rows(table: Tensor, index: Tensor, weights: Tensor) -> Tensor:
    """Compute sum_j weights_nj table[index_nj] (n, r). table: (V, r); index, weights: (n, k)."""
    return embedding_bag(index, table, per_sample_weights=weights, mode="sum")
