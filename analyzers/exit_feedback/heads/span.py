"""The projection of the gradient on the span of anchor hidden states, from forward quantities: (W^T G_i) . a_j = G_i . (W a_j)."""

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import linear

from analyzers.exit_feedback.heads.codes import stream
from analyzers.exit_feedback.heads.head import FeedbackHead
from analyzers.exit_feedback.heads.rows import Rows, Signal


class SpanHead(FeedbackHead):
    """(G A_W^T)(A A^T)^+ A with anchors A (m, d) and their own linear logits A_W = A W^T (m, V).

    anchor_states: (m, d), anchors of all calls; where it is None, m tokens of the call are drawn by the seed, of those with a gradient,
    without replacement, and all of them where there are fewer. Anchors may be linearly dependent. From m = d independent ones the span
    is everything, and the signal the gradient.
    """

    method: ClassVar[str] = "span"
    uses: ClassVar[tuple[str, ...]] = ("anchors", "seed")

    anchor_states: Tensor | None = None

    def own_rows(self, chunk: int) -> int:
        """All anchors where they fit into half a chunk, so that their logits are computed once; else half a chunk at a time."""
        anchors = self.settings.anchors if self.anchor_states is None else len(self.anchor_states)
        return min(anchors, chunk // 2)

    def begin(self, weight: Tensor, h: Tensor, live: Tensor, rows: int) -> Signal:
        """See FeedbackHead."""
        anchors = self._anchors(h, live).to(weight.dtype)
        solved = pseudo_inverse(anchors).mT.contiguous()
        kept = linear(anchors, weight) if len(anchors) <= rows else None

        def signal(rows_of: Rows) -> Tensor:
            if kept is not None:
                return (rows_of.gradient @ kept.mT) @ solved
            found = torch.zeros_like(rows_of.h)
            for first in range(0, len(anchors), rows):
                here = slice(first, first + rows)
                found += (rows_of.gradient @ linear(anchors[here], weight).mT) @ solved[here]
            return found

        return signal

    def _anchors(self, h: Tensor, live: Tensor) -> Tensor:
        if self.anchor_states is not None:
            return self.anchor_states.to(h.device)
        index = live.nonzero().squeeze(1)
        drawn = torch.randperm(len(index), generator=stream(self.settings.seed, "anchors"))[: self.settings.anchors]
        return h[index[drawn.to(h.device)]]


def pseudo_inverse(anchors: Tensor) -> Tensor:
    """A^+ (d, m) of A (m, d), in its type; NaN throughout where A is not finite.

    By the eigenvectors of the smaller of A A^T and A^T A in float64. Directions in which A is shorter than 10 epsilon of its type,
    against its longest, are left out: what is known along them is rounding.
    """
    rows = anchors.double()
    wide = len(rows) <= rows.shape[1]
    gram = rows @ rows.mT if wide else rows.mT @ rows
    if not gram.numel():
        return anchors.mT
    if not bool(gram.isfinite().all()):
        return torch.full_like(anchors.mT, torch.nan)
    values, vectors = torch.linalg.eigh(gram)
    floor = max((10 * torch.finfo(anchors.dtype).eps) ** 2, torch.finfo(torch.float64).eps * len(gram))
    inverse = torch.where(values > floor * values[-1].clamp(min=0), 1 / values, 0)
    inverted = (vectors * inverse) @ vectors.mT
    found: Tensor = rows.mT @ inverted if wide else inverted @ rows.mT
    return found.to(anchors.dtype)
