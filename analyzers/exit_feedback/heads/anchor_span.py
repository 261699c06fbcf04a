"""Projection of the gradient on the span of anchor hidden states, from forward quantities: (W^T e_i) . a_j = e_i . (W a_j)."""

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import linear

from analyzers.exit_feedback.heads.head import FeedbackHead
from analyzers.exit_feedback.heads.random_codes import stream
from analyzers.exit_feedback.heads.token_rows import Rows, Signal


class SpanHead(FeedbackHead):
    """Head with the signal (e A_W^T)(A A^T)^+ A, e = dL/dy, for anchors A (m, d) and their linear logits A_W = A W^T (m, V).

    anchor_states: (m, d), anchors of all calls; if None, m tokens of each call are drawn by the seed, without replacement, among those with
    a gradient, or all of these if there are fewer. Anchors may be linearly dependent. With d independent anchors, the signal is the
    gradient.
    """

    method: ClassVar[str] = "span"

    anchor_states: Tensor | None = None

    def own_rows(self, chunk: int) -> int:
        """Return the number of anchors, whose logits are then computed once, but at most half a chunk."""
        anchors = self.settings.anchors if self.anchor_states is None else len(self.anchor_states)
        return min(anchors, chunk // 2)

    def begin(self, weight: Tensor, h: Tensor, live: Tensor, rows: int) -> Signal:
        anchors = self._anchors(h, live).to(weight.dtype)
        inverse = pseudo_inverse(anchors).mT.contiguous()
        anchor_logits = linear(anchors, weight) if len(anchors) <= rows else None

        def signal(batch: Rows) -> Tensor:
            if anchor_logits is not None:
                return (batch.grad_y @ anchor_logits.mT) @ inverse
            total = torch.zeros_like(batch.h)
            for first in range(0, len(anchors), rows):
                part = slice(first, first + rows)
                total += (batch.grad_y @ linear(anchors[part], weight).mT) @ inverse[part]
            return total

        return signal

    def _anchors(self, h: Tensor, live: Tensor) -> Tensor:
        if self.anchor_states is not None:
            return self.anchor_states.to(h.device)
        index = live.nonzero().squeeze(1)
        order = torch.randperm(len(index), generator=stream(self.settings.seed, "anchors"))[: self.settings.anchors]
        return h[index[order.to(h.device)]]


def pseudo_inverse(anchors: Tensor) -> Tensor:
    """Compute A^+ (d, m) for A (m, d), in its dtype; all NaN if A is not finite.

    Singular values below 10 epsilon of the dtype, relative to the largest, are rounding noise and count as 0.
    """
    if not bool(anchors.isfinite().all()):
        return torch.full_like(anchors.mT, torch.nan)
    inverse: Tensor = torch.linalg.pinv(anchors.double(), rtol=10 * torch.finfo(anchors.dtype).eps)
    return inverse.to(anchors.dtype)
