"""The component of the gradient along h, which forward quantities give exactly: h . (W^T G) = G . (W h), for any loss.

h = 0 has no direction: its signal is 0. Axes: n tokens, d width; G = dL/dy (n, V), C (V, r) codes, U (d, r) expander.
"""

from typing import ClassVar

import torch
from torch import Tensor

from analyzers.exit_feedback.heads.head import FeedbackHead
from analyzers.exit_feedback.heads.random_codes import RandomCodesHead
from analyzers.exit_feedback.heads.rows import Rows, Signal, weighted_rows


def along(rows: Rows, direction: Tensor) -> Tensor:
    """((G . W h) / |h|) h / |h|: (n, d). direction: h / |h|.

    W h is without bias, scale and cap, as G is with respect to what comes before them. Tokens of the vocabulary without a gradient add
    nothing, whatever their logit: one that a bias of -inf rules out has none.
    """
    assert rows.linear is not None
    product = (rows.gradient * rows.linear).sum(-1, keepdim=True)
    if not bool(product.isfinite().all()):
        product = (rows.gradient * rows.linear).masked_fill_(rows.gradient == 0, 0).sum(-1, keepdim=True)
    states = rows.h.to(direction.dtype)
    length = (states * direction).sum(-1, keepdim=True)
    return torch.where(length == 0, 0, product / length) * direction


class ParallelHead(FeedbackHead):
    """(G . W h / |h|^2) h."""

    method: ClassVar[str] = "parallel"
    reads_logits: ClassVar[bool] = True

    def begin(self, weight: Tensor, h: Tensor, live: Tensor, rows: int) -> Signal:
        """See FeedbackHead."""
        return lambda rows: along(rows, rows.direction())


class ParallelTopmassHead(RandomCodesHead):
    """Along h as ``parallel``, and orthogonal to it lambda times the codes of the k tokens with the largest |logit gradient|.

    Their codes are alpha G_K C U^T, less its component along h; the gold token is one of them.
    """

    method: ClassVar[str] = "parallel_topmass"
    uses: ClassVar[tuple[str, ...]] = ("rank", "k", "residual", "alpha", "seed", "fresh")
    reads_logits: ClassVar[bool] = True

    @property
    def tokens(self) -> int:
        """How many tokens of the vocabulary are coded."""
        return self.settings.k

    def coded(self, rows: Rows) -> Tensor:
        """See RandomCodesHead."""
        direction = rows.direction()
        code = self.expand(weighted_rows(self.codes, *rows.chosen(self.tokens)))
        across = code - (code * direction).sum(-1, keepdim=True) * direction
        has_direction = direction.any(-1, keepdim=True)
        return along(rows, direction) + torch.where(has_direction, self.settings.residual * across, 0)


class ParallelGoldHead(ParallelTopmassHead):
    """Along h as ``parallel``, and orthogonal to it lambda times the code of the gold token alone."""

    method: ClassVar[str] = "parallel_gold"
    uses: ClassVar[tuple[str, ...]] = ("rank", "residual", "alpha", "seed", "fresh")

    @property
    def tokens(self) -> int:
        """The gold one."""
        return 1
