"""Computes per-sample losses at the language-model head and their gradient with respect to the last layer's output, in chunks of tokens."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from analyzers.language_models.batch import IGNORED
from analyzers.language_models.ffn import text_config
from analyzers.language_models.model_failures import running
from analyzers.language_models.stages import Stages

# Size of a chunk of logits: all logits at once would be the largest tensor of the run; smaller chunks would read the head's weights often.
_CHUNK_BYTES = 16 << 20
_CHUNK_ROWS = 128


def losses_and_gradient(stages: Stages, hidden: Tensor, labels: Tensor, loss: Literal["mean", "sum"]) -> tuple[Tensor, Tensor]:
    """Compute the per-sample cross-entropy (nats) of the answer tokens, and the gradient of the sum of these losses.

    hidden: (S, L - 1, d), the last layer's output for each token but the last; labels: (S, L), token ids, IGNORED outside the answers; the
    label at position t is predicted from t - 1. loss: mean or sum over a sample's answer tokens.
    Returns (S,) float32 (float64 for a float64 model), and (S, L - 1, d), zero where no label follows.
    """
    samples, positions = (each.to(hidden.device) for each in (labels[:, 1:] != IGNORED).nonzero(as_tuple=True))
    targets = labels.to(hidden.device)[samples, positions + 1]
    kind = torch.promote_types(hidden.dtype, torch.float32)
    counts = torch.bincount(samples, minlength=len(hidden)).clamp(min=1)
    weights = torch.ones_like(counts, dtype=kind) if loss == "sum" else 1 / counts.to(kind)
    losses = torch.zeros(len(hidden), dtype=kind, device=hidden.device)
    gradient = torch.zeros_like(hidden)
    chunks = (torch.split(each, _rows(stages.outside, kind)) for each in (samples, positions, targets))
    for sample, position, target in zip(*chunks, strict=True):
        rows = hidden[sample, position].detach().requires_grad_()
        with torch.enable_grad(), running():
            logits = stages.head(rows).to(kind)
            of_tokens = cross_entropy(logits, target.to(logits.device), reduction="none") * weights[sample].to(logits.device)
        (gradient[sample, position],) = torch.autograd.grad(of_tokens.sum(), rows)
        losses.index_add_(0, sample, of_tokens.detach().to(rows.device))
    return losses, gradient


def logits_bytes(model: nn.Module, dtype: torch.dtype) -> int:
    """Bound the peak memory in bytes of `losses_and_gradient` for a model of this ``dtype``: four times a chunk of logits."""
    kind = torch.promote_types(dtype, torch.float32)
    return 4 * _rows(model, kind) * kind.itemsize * int(text_config(model).vocab_size)


def _rows(model: nn.Module, kind: torch.dtype) -> int:
    """Return the number of rows per chunk of logits."""
    return max(_CHUNK_ROWS, _CHUNK_BYTES // (kind.itemsize * int(text_config(model).vocab_size)))
