"""Component of the gradient along h, exact from forward quantities for any loss, h . (W^T e) = e . (W h); codes orthogonal to h.

The signal of h = 0, which has no direction, is 0. Axes: n tokens, d width, V vocabulary, r rank; e = dL/dy (n, V).
"""

from typing import ClassVar, cast

import torch
from torch import Tensor

from analyzers.exit.heads.head import FeedbackHead
from analyzers.exit.heads.random_codes import RandomCodesHead, unit_codes
from analyzers.exit.heads.token_rows import Rows, weighted_rows
from analyzers.exit.signals import TOPMASS_TOKENS


def along(rows: Rows, bias: Tensor | None) -> Tensor:
    """Compute (e . W h / |h|^2) h, (n, d).

    W h excludes bias, scale and cap, because e is the gradient before scale and cap. Entries of the vocabulary without a gradient add
    nothing, whatever their logit, which a bias of -inf may have made infinite.
    """
    assert rows.y is not None
    linear = rows.y if bias is None else rows.y - bias
    product = (rows.grad_y * linear).masked_fill_(rows.grad_y == 0, 0).sum(-1, keepdim=True)
    return product / rows.h.square().sum(-1, keepdim=True).clamp(min=torch.finfo(rows.h.dtype).tiny) * rows.h


class ParallelHead(FeedbackHead):
    """Head with the signal (e . W h / |h|^2) h."""

    method: ClassVar[str] = "parallel"
    reads_logits: ClassVar[bool] = True

    def feedback(self, rows: Rows) -> Tensor:
        return along(rows, self.bias)


class ParallelGoldHead(RandomCodesHead):
    """Head with the parallel component plus lambda R(h) c, c = e_y q_y with unit-norm codes q (V, r) and the gold token y.

    R(h): the columns of the orthonormal Q (d, r), projected onto the complement of h and renormalized to length 1.
    """

    method: ClassVar[str] = "parallel_gold"
    reads_logits: ClassVar[bool] = True

    def draw_codes(self, generator: torch.Generator) -> Tensor:
        return unit_codes(len(self.weight), cast(int, self.settings.rank), generator)

    def code_of(self, rows: Rows) -> Tensor:
        """Compute c (n, r)."""
        gold = rows.gold_tokens()[:, None]
        return rows.grad_y.gather(1, gold) * self.codes[gold[:, 0]]

    def coded(self, rows: Rows) -> Tensor:
        direction, code, columns = rows.direction(), self.code_of(rows), self.expander
        squared = 1 - (direction @ columns).square()  # Squared length of each projected column.
        # The projection of a column along h is pure rounding error, without a direction.
        inverse = torch.where(squared > 10 * torch.finfo(squared.dtype).eps, squared.rsqrt(), 0)
        residual = (code * inverse) @ columns.mT
        residual = residual - (residual * direction).sum(-1, keepdim=True) * direction
        has_direction = direction.any(-1, keepdim=True)
        return along(rows, self.bias) + torch.where(has_direction, self.settings.residual * residual, 0)


class ParallelTopmassHead(ParallelGoldHead):
    """Head like parallel_gold with c = e_y q_y + sum_M e_j q_j, each token once.

    M: the most probable tokens, as long as their cumulative probability is at most the mass threshold; at least 1, at most 200.
    """

    method: ClassVar[str] = "parallel_topmass"

    def code_of(self, rows: Rows) -> Tensor:
        assert rows.y is not None
        logits = self.logits(rows.y)
        values, index = logits.topk(min(TOPMASS_TOKENS, logits.shape[1]), -1)
        p = (values - logits.logsumexp(-1, keepdim=True)).exp()
        included = p.double().cumsum(-1).clamp(max=1) <= self.settings.mass_threshold  # A sum over all, rounded, may exceed 1.
        included[:, 0] = True
        return weighted_rows(self.codes, *rows.with_gold(index, included))
