"""Losses on the log-probabilities of the chosen tokens, and their gradients with respect to the logits.

Every loss here depends on the logits only through log p of the chosen tokens, so one coefficient per token, -d loss / d log p, describes
its gradient. Computed in fp32, as in training, a few rows of logits at a time. Axes: S sequences, L predicted tokens per sequence,
V vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from analyzers.precision.request import CLIP

PIECE_BYTES = 16 << 20
"""Bytes of fp32 logits handled at a time; on a GPU 16 times as many, since each operation is a launch."""


class LossTerms(NamedTuple):
    """losses: (S, L) or (S,), their mean is the loss; coefficients: (S, L), -d loss / d log p."""

    losses: Tensor
    coefficients: Tensor


@dataclass(frozen=True, eq=False, slots=True)
class Objective:
    """The loss that is differentiated: gspo with ``advantages`` (S,), cross-entropy without."""

    advantages: Tensor | None = None

    def terms(self, log_p: Tensor, reference: Tensor) -> LossTerms:
        """log_p: (S, L) of the run; reference: (S, L) of the fp32 reference, the sampling policy."""
        return cross_entropy(log_p) if self.advantages is None else gspo(log_p, reference, self.advantages.to(log_p.device))


def log_probabilities(logits: Tensor, targets: Tensor) -> Tensor:
    """log p of the targets (S, L) under logits (S, L, V): (S, L) fp32."""
    rows, target_rows = logits.detach().flatten(0, 1), targets.flatten()
    log_p = torch.empty(len(rows), dtype=torch.float32, device=logits.device)
    for piece in _pieces(rows):
        log_p[piece] = torch.log_softmax(rows[piece].float(), -1).gather(-1, target_rows[piece, None]).squeeze(-1)
    return log_p.view(targets.shape)


def logits_gradient(logits: Tensor, targets: Tensor, coefficients: Tensor) -> Tensor:
    """Gradient (S, L, V) with respect to the logits of -sum(coefficients log p): coefficient (softmax - one-hot) for each token.

    By autograd, through fp32 to the dtype of the logits. coefficients: (S, L) fp32.
    """
    rows, target_rows = logits.detach().flatten(0, 1), targets.flatten()
    gradient = torch.empty_like(rows)
    for piece in _pieces(rows):
        piece_rows = rows[piece].requires_grad_()
        with torch.enable_grad():
            log_p = torch.log_softmax(piece_rows.float(), -1).gather(-1, target_rows[piece, None]).squeeze(-1)
        (gradient[piece],) = torch.autograd.grad(log_p, piece_rows, -coefficients.flatten()[piece])
    return gradient.view(logits.shape)


def cross_entropy(log_p: Tensor) -> LossTerms:
    """-log p of each token, (S, L)."""
    return LossTerms(-log_p, torch.full_like(log_p, 1 / log_p.numel()))


def gspo(log_p: Tensor, old: Tensor, advantages: Tensor) -> LossTerms:
    """-min(s A, clip(s, 1 - low, 1 + high) A) of each sequence (S,), with s = exp(mean over tokens of log p - log p_old).

    Group Sequence Policy Optimization (arXiv 2507.18071, equations 5 and 7). old: (S, L); advantages: (S,); low, high: `CLIP`. A clipped
    sequence has no gradient.
    """
    ratios, (low, high) = (log_p - old).mean(-1).exp(), CLIP
    losses = -torch.minimum(ratios * advantages, ratios.clamp(1 - low, 1 + high) * advantages)
    clipped = ((advantages > 0) & (ratios > 1 + high)) | ((advantages < 0) & (ratios < 1 - low))
    weights = torch.where(clipped, 0.0, ratios * advantages) / log_p.numel()
    return LossTerms(losses, weights[:, None].expand(log_p.shape).contiguous())


def _pieces(rows: Tensor) -> Iterator[slice]:
    step = max(1, PIECE_BYTES * (16 if rows.is_cuda else 1) // (4 * rows.shape[-1]))
    return (slice(first, first + step) for first in range(0, len(rows), step))
