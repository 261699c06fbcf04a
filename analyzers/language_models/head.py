"""The head of a language model: losses of samples and the gradient that enters the decoder, a few answer tokens at a time."""

from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from analyzers.language_models.ffn import text_config
from analyzers.language_models.prompts import IGNORED

# One piece of the logits: all of them at once would be the largest tensor of the run. With fewer rows the head's weights would be read
# over and over.
_BYTES = 16 << 20
_ROWS = 128


def losses_and_gradient(model: nn.Module, hidden: Tensor, labels: Tensor, loss: Literal["mean", "sum"]) -> tuple[Tensor, Tensor]:
    """Per sample the cross-entropy (nats) of its answer tokens, and the gradient of the sum of these losses.

    hidden: (S, L - 1, d), what the decoder gives, of each token but the last; labels: (S, L), the tokens themselves, IGNORED where they
    are not asked for; that at position t is predicted from t - 1. loss: of a sample, the mean or the sum over its answer tokens.
    Returns (S,) float32 (float64 for a model in float64), and (S, L - 1, d), zero where no label follows.
    """
    samples, positions = (labels[:, 1:] != IGNORED).nonzero(as_tuple=True)
    targets = labels[samples, positions + 1].to(hidden.device)
    samples, positions = samples.to(hidden.device), positions.to(hidden.device)
    kind = torch.promote_types(hidden.dtype, torch.float32)
    counts = torch.bincount(samples, minlength=len(hidden)).clamp(min=1)
    weights = torch.ones_like(counts, dtype=kind) if loss == "sum" else 1 / counts.to(kind)
    losses = torch.zeros(len(hidden), dtype=kind, device=hidden.device)
    gradient = torch.zeros_like(hidden)
    piece = _piece(model, kind)
    for first in range(0, len(targets), piece):
        here = slice(first, first + piece)
        rows = hidden[samples[here], positions[here]].detach().requires_grad_()
        with torch.enable_grad():
            logits = _logits(model, rows).to(kind)
            weighted = cross_entropy(logits, targets[here].to(logits.device), reduction="none").to(rows.device) * weights[samples[here]]
            gradient[samples[here], positions[here]] = torch.autograd.grad(weighted.sum(), rows)[0]
        losses.index_add_(0, samples[here], weighted.detach())
    return losses, gradient


def logits_bytes(model: nn.Module, dtype: torch.dtype) -> int:
    """At most what `losses_and_gradient` takes in a model of that ``dtype``: a piece of the logits four times."""
    kind = torch.promote_types(dtype, torch.float32)
    return 4 * _piece(model, kind) * kind.itemsize * int(text_config(model).vocab_size)


def _piece(model: nn.Module, kind: torch.dtype) -> int:
    """Rows of logits at a time."""
    return max(_ROWS, _BYTES // (kind.itemsize * int(text_config(model).vocab_size)))


def _logits(model: nn.Module, hidden: Tensor) -> Tensor:
    """(n, d) to (n, V), as the model itself does it."""
    logits: Tensor = cast(Any, model).get_output_embeddings()(hidden)
    cap = getattr(text_config(model), "final_logit_softcapping", None)
    return logits if cap is None else cap * torch.tanh(logits / cap)
