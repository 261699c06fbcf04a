"""From logits to losses and back: log-probabilities of the chosen tokens, and the gradient that enters the head.

Both losses are sums of log-probabilities with a coefficient for each token, so that one function gives their gradients. In fp32, as in a
training run, a few rows of logits at a time. Axes: S sequences, L predicted tokens of each, V vocabulary.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

PIECE_BYTES = 16 << 20
"""Bytes of the logits of one piece in fp32."""


def log_probabilities(logits: Tensor, targets: Tensor) -> Tensor:
    """log p of the targets (S, L) under logits (S, L, V): (S, L) fp32."""
    rows, chosen = logits.detach().flatten(0, 1), targets.flatten()
    found = torch.empty(len(rows), dtype=torch.float32, device=logits.device)
    for here in _pieces(rows):
        found[here] = torch.log_softmax(rows[here].float(), -1).gather(-1, chosen[here, None]).squeeze(-1)
    return found.view(targets.shape)


def logits_gradient(logits: Tensor, targets: Tensor, coefficients: Tensor) -> Tensor:
    """(S, L, V): -sum over tokens of coefficient log p, differentiated with respect to logits: coefficient (softmax - one-hot).

    By torch's own way back, through fp32 to the dtype of the logits. coefficients: (S, L) fp32.
    """
    rows, chosen = logits.detach().flatten(0, 1), targets.flatten()
    gradient = torch.empty_like(rows)
    for here in _pieces(rows):
        piece = rows[here].requires_grad_()
        with torch.enable_grad():
            log_p = torch.log_softmax(piece.float(), -1).gather(-1, chosen[here, None]).squeeze(-1)
        (gradient[here],) = torch.autograd.grad(log_p, piece, -coefficients.flatten()[here])
    return gradient.view(logits.shape)


def cross_entropy(log_p: Tensor) -> tuple[Tensor, Tensor]:
    """Losses -log p (S, L), whose mean is the loss, and the coefficients (S, L) of its gradient."""
    return -log_p, torch.full_like(log_p, 1 / log_p.numel())


def gspo(log_p: Tensor, reference: Tensor, advantages: Tensor) -> tuple[Tensor, Tensor]:
    """Losses -A exp(mean over tokens of log p - log p_ref) (S,), whose mean is the loss, and the coefficients (S, L) of its gradient.

    Group Sequence Policy Optimization (arXiv 2507.18071, equations 5 and 7) without its clipping, which would set whole gradients to zero
    for differences of the size that is measured here. advantages: (S,).
    """
    ratios = (log_p - reference).mean(-1).exp()
    sequences, tokens = log_p.shape
    losses = -advantages * ratios
    return losses, (-losses / (sequences * tokens))[:, None].expand(sequences, tokens).contiguous()


def _pieces(rows: Tensor) -> Iterator[slice]:
    step = max(1, PIECE_BYTES // (4 * rows.shape[-1]))
    return (slice(first, first + step) for first in range(0, len(rows), step))
