"""Signals that read the head's weight: the exact gradient, and upper bounds for signals that read less of it."""

from dataclasses import replace
from typing import ClassVar, cast

import torch
from torch import Tensor

from analyzers.exit_feedback.heads.head import FeedbackHead
from analyzers.exit_feedback.heads.token_rows import Rows, Signal, weighted_rows, wide
from analyzers.exit_feedback.signals import EXACT

# Number of rows of W that are converted to a wider dtype at a time.
_BLOCK = 1 << 14


class ExactHead(FeedbackHead):
    """Head with the exact gradient (dL/dy) W, computed by the same code as the signals that are compared with it."""

    method: ClassVar[str] = EXACT

    def begin(self, weight: Tensor, h: Tensor, live: Tensor, rows: int) -> Signal:
        return lambda rows: rows.grad_y @ weight


class TrueRowsHead(FeedbackHead):
    """Head with the sum of dL/dy_v W_v over the gold token and the k tokens with the largest |dL/dz|, each once.

    With k = V this is the exact gradient.
    """

    method: ClassVar[str] = "true_rows"
    reads_logits: ClassVar[bool] = True

    def begin(self, weight: Tensor, h: Tensor, live: Tensor, rows: int) -> Signal:
        k = cast(int, self.settings.k)

        def signal(rows: Rows) -> Tensor:
            assert rows.grad_z is not None
            return weighted_rows(weight, *rows.with_gold(rows.grad_z.abs().topk(k, -1).indices))

        return signal


class SvdHead(FeedbackHead):
    """Head with (dL/dy) W_r, W_r = W R R^T the truncated singular value decomposition of W, R (d, r) the leading right singular vectors.

    W is decomposed again after an in-place change, by torch's version counter.
    """

    method: ClassVar[str] = "svd"

    _basis: Tensor | None = None
    _basis_version: tuple[object, ...] = ()

    def at_rank(self, rank: int) -> "SvdHead":
        """Return this head with another rank, sharing the decomposition of W."""
        scale, cap = self.activation.scale, self.activation.cap
        other = SvdHead(self.weight, self.bias, replace(self.settings, rank=rank), logit_scale=scale, softcap=cap)
        other._basis, other._basis_version = self.basis(), self._basis_version
        return other

    def basis(self) -> Tensor:
        """Return all right singular vectors of W as columns, by descending singular value: (d, d), float32 at least."""
        weight = self.weight.detach()
        version = (0 if weight.is_inference() else weight._version, weight.data_ptr(), weight.dtype, weight.device)
        if self._basis is None or self._basis_version != version:
            self._basis, self._basis_version = right_singular_vectors(weight), version
        return self._basis

    def begin(self, weight: Tensor, h: Tensor, live: Tensor, rows: int) -> Signal:
        right = self.basis()[:, : self.settings.rank].to(weight.dtype)
        return lambda rows: ((rows.grad_y @ weight) @ right) @ right.mT


def right_singular_vectors(weight: Tensor) -> Tensor:
    """Return the eigenvectors (d, d) of W^T W by descending eigenvalue, summed over blocks in float64; all NaN if W is not finite."""
    width = weight.shape[1]
    gram = torch.zeros(width, width, dtype=torch.float64, device=weight.device)
    kind = wide(weight.dtype)
    for first in range(0, len(weight), _BLOCK):
        block = weight[first : first + _BLOCK].to(kind)
        gram += block.mT @ block
    if not bool(gram.isfinite().all()):
        return torch.full_like(gram, torch.nan, dtype=kind)
    vectors: Tensor = torch.linalg.eigh(gram).eigenvectors
    return vectors.flip(1).to(kind)
