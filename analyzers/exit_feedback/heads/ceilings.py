"""Signals that read the head's weight: the exact gradient, and upper bounds for signals that know less of it."""

from dataclasses import replace
from typing import ClassVar, cast

import torch
from torch import Tensor

from analyzers.exit_feedback.heads.head import FeedbackHead
from analyzers.exit_feedback.heads.token_rows import Rows, Signal, weighted_rows, wide
from analyzers.exit_feedback.signals import EXACT

# Rows of W converted to a wider type at once.
_BLOCK = 1 << 14


class ExactHead(FeedbackHead):
    """(dL/dy) W: backpropagation, by the same code as the signals that are compared with it."""

    method: ClassVar[str] = EXACT

    def begin(self, weight: Tensor, h: Tensor, live: Tensor, rows: int) -> Signal:
        return lambda rows: rows.grad_y @ weight


class TrueRowsHead(FeedbackHead):
    """sum of dL/dy_v W_v over the gold token and the k tokens with the largest |dL/dz|, each once. With k = V it is the gradient."""

    method: ClassVar[str] = "true_rows"
    reads_logits: ClassVar[bool] = True

    def begin(self, weight: Tensor, h: Tensor, live: Tensor, rows: int) -> Signal:
        k = cast(int, self.settings.k)

        def signal(rows: Rows) -> Tensor:
            assert rows.grad_z is not None
            return weighted_rows(weight, *rows.with_gold(rows.grad_z.abs().topk(k, -1).indices))

        return signal


class SvdHead(FeedbackHead):
    """(dL/dy) W_r, with W_r = W R R^T the truncated singular value decomposition of W, R (d, r) its leading right singular vectors.

    After an in-place change of W (as torch counts them) it is decomposed again.
    """

    method: ClassVar[str] = "svd"

    _basis: Tensor | None = None
    _basis_version: tuple[object, ...] = ()

    def at_rank(self, rank: int) -> "SvdHead":
        """The same head with another rank, without another decomposition of W."""
        scale, cap = self.activation.scale, self.activation.cap
        other = SvdHead(self.weight, self.bias, replace(self.settings, rank=rank), logit_scale=scale, softcap=cap)
        other._basis, other._basis_version = self.basis(), self._basis_version
        return other

    def basis(self) -> Tensor:
        """All right singular vectors of W as columns, by descending singular value: (d, d), float32 at least."""
        weight = self.weight.detach()
        version = (0 if weight.is_inference() else weight._version, weight.data_ptr(), weight.dtype, weight.device)
        if self._basis is None or self._basis_version != version:
            self._basis, self._basis_version = right_singular_vectors(weight), version
        return self._basis

    def begin(self, weight: Tensor, h: Tensor, live: Tensor, rows: int) -> Signal:
        right = self.basis()[:, : self.settings.rank].to(weight.dtype)
        return lambda rows: ((rows.grad_y @ weight) @ right) @ right.mT


def right_singular_vectors(weight: Tensor) -> Tensor:
    """Eigenvectors of W^T W, summed over blocks in float64: (V, d) to (d, d), by descending eigenvalue; NaN where W is not finite."""
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
