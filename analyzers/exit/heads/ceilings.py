"""Signals that read the head's weight: the exact gradient, and upper bounds for signals that read less of it."""

from dataclasses import replace
from functools import cached_property
from typing import ClassVar, cast

import torch
from torch import Tensor

from analyzers.exit.heads.head import FeedbackHead
from analyzers.exit.heads.token_rows import Rows, weighted_rows
from analyzers.exit.signals import EXACT

# Number of rows of W whose products are computed at a time.
_BLOCK = 1 << 14


class ExactHead(FeedbackHead):
    """Head with the exact gradient (dL/dy) W, computed by the same code as the signals that are compared with it."""

    method: ClassVar[str] = EXACT

    def feedback(self, rows: Rows) -> Tensor:
        return rows.grad_y @ self.weight


class TrueRowsHead(FeedbackHead):
    """Head with the sum of dL/dy_v W_v over the gold token and the k tokens with the largest |dL/dz|, each once.

    With k = V this is the exact gradient.
    """

    method: ClassVar[str] = "true_rows"

    def feedback(self, rows: Rows) -> Tensor:
        largest = rows.grad_z.abs().topk(cast(int, self.settings.k), -1).indices
        return weighted_rows(self.weight, *rows.with_gold(largest))


class SvdHead(FeedbackHead):
    """Head with (dL/dy) W_r, W_r = W R R^T the truncated singular value decomposition of W, R (d, r) the leading right singular vectors.

    W is decomposed once.
    """

    method: ClassVar[str] = "svd"

    def at_rank(self, rank: int) -> "SvdHead":
        """Return this head with another rank, sharing the decomposition of W."""
        other = SvdHead(self.weight, self.bias, replace(self.settings, rank=rank), logit_scale=self.scale, softcap=self.cap)
        other.basis = self.basis
        return other

    @cached_property
    def basis(self) -> Tensor:
        """All right singular vectors of W as columns, by descending singular value, (d, d): the eigenvectors of W^T W in float64."""
        width = self.weight.shape[1]
        gram = torch.zeros(width, width, dtype=torch.float64, device=self.weight.device)
        for block in torch.split(self.weight.detach(), _BLOCK):
            gram += block.mT @ block
        vectors: Tensor = torch.linalg.eigh(gram).eigenvectors
        return vectors.flip(1).to(self.weight.dtype)

    def feedback(self, rows: Rows) -> Tensor:
        right = self.basis[:, : self.settings.rank]
        return ((rows.grad_y @ self.weight) @ right) @ right.mT
