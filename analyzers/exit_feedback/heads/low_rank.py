"""The gradient through the best approximation of W of some rank: a ceiling of what signals of r directions can give."""

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from analyzers.exit_feedback.heads.activation import wide
from analyzers.exit_feedback.heads.head import FeedbackHead
from analyzers.exit_feedback.heads.rows import Signal

# Rows of W that are brought to a longer type at once.
_BLOCK = 1 << 14


class SvdHead(FeedbackHead):
    """G W_r, with W_r = (W R) R^T the truncated singular value decomposition of W, R (d, r) its leading right singular vectors.

    It follows W: where W has changed (as torch counts changes in place) it is decomposed again.
    """

    method: ClassVar[str] = "svd"
    uses: ClassVar[tuple[str, ...]] = ("rank",)

    _basis: Tensor | None = None
    _of: tuple[object, ...] = ()
    _left: Tensor | None = None
    _left_of: tuple[object, ...] = ()

    def at_rank(self, rank: int) -> "SvdHead":
        """The same head at another rank, without decomposing W once more."""
        scale, cap = self.activation.scale, self.activation.cap
        other = SvdHead(self.weight, self.bias, replace(self.settings, rank=rank), logit_scale=scale, softcap=cap)
        other._basis, other._of = self.basis(), self._of
        return other

    def basis(self) -> Tensor:
        """All right singular vectors of W as columns, of descending singular values: (d, d), float32 at least."""
        weight = self.weight.detach()
        now = (0 if weight.is_inference() else weight._version, weight.data_ptr(), weight.dtype, weight.device)
        if self._basis is None or self._of != now:
            self._basis, self._of = right_singular_vectors(weight), now
        return self._basis

    def begin(self, weight: Tensor, h: Tensor, live: Tensor, rows: int) -> Signal:
        """See FeedbackHead."""
        right = self.basis()[:, : self.settings.rank].to(weight.dtype)
        if self._left is None or self._left_of != (*self._of, weight.dtype):
            self._left, self._left_of = weight.detach() @ right, (*self._of, weight.dtype)
        left = self._left
        return lambda rows: (rows.gradient @ left) @ right.mT


def right_singular_vectors(weight: Tensor) -> Tensor:
    """Eigenvectors of W^T W, its blocks summed in float64: (V, d) to (d, d), by descending eigenvalue; NaN where W is not finite."""
    width = weight.shape[1]
    gram = torch.zeros(width, width, dtype=torch.float64, device=weight.device)
    kind = wide(weight.dtype)
    for first in range(0, len(weight), _BLOCK):
        rows = weight[first : first + _BLOCK].to(kind)
        gram += rows.mT @ rows
    if not bool(gram.isfinite().all()):
        return torch.full_like(gram, torch.nan, dtype=kind)
    vectors: Tensor = torch.linalg.eigh(gram).eigenvectors
    return vectors.flip(1).to(kind)
