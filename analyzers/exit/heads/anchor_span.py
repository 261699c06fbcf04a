"""Projection of the gradient on the span of anchor hidden states, from forward quantities: (W^T e_i) . a_j = e_i . (W a_j)."""

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import linear

from analyzers.exit.heads.head import FeedbackHead
from analyzers.exit.heads.random_codes import stream
from analyzers.exit.heads.token_rows import Rows

_LEAST = 16  # anchors whose logits are computed at a time, if there are fewer tokens


class SpanHead(FeedbackHead):
    """Head with the signal (e A_W^T)(A A^T)^+ A, e = dL/dy, for anchors A (m, d) and their linear logits A_W = A W^T (m, V).

    anchor_states: (m, d), anchors of all calls; if None, m tokens of each call, or of each chunk of `loss`, are drawn by the seed, without
    replacement, among those with a gradient, or all of these if there are fewer. Anchors may be linearly dependent. With d independent
    anchors, the signal is the gradient.
    """

    method: ClassVar[str] = "span"

    anchor_states: Tensor | None = None

    def feedback(self, rows: Rows) -> Tensor:
        anchors = self._anchors(rows)
        inverse = pseudo_inverse(anchors).mT
        at_once = max(_LEAST, len(rows.h))  # so that their logits take as much memory as those of the tokens
        total = torch.zeros_like(rows.h)
        for part, weights in zip(torch.split(anchors, at_once), torch.split(inverse, at_once), strict=True):
            total += (rows.grad_y @ linear(part, self.weight).mT) @ weights
        return total

    def _anchors(self, rows: Rows) -> Tensor:
        if self.anchor_states is not None:
            return self.anchor_states.to(rows.h)
        index = rows.live.nonzero().squeeze(1)
        order = torch.randperm(len(index), generator=stream(self.settings.seed, "anchors"))[: self.settings.anchors]
        return rows.h[index[order.to(index.device)]]


def pseudo_inverse(anchors: Tensor) -> Tensor:
    """Compute A^+ (d, m) for A (m, d), in its dtype; all NaN if A is not finite.

    Singular values below 10 epsilon of the dtype, relative to the largest, are rounding noise and count as 0.
    """
    if not anchors.isfinite().all():
        return torch.full_like(anchors.mT, torch.nan)
    inverse: Tensor = torch.linalg.pinv(anchors.double(), rtol=10 * torch.finfo(anchors.dtype).eps)
    return inverse.to(anchors.dtype)
