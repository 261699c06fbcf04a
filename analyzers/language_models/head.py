"""The head of a language model: losses of samples and the gradient that enters the decoder, a few answer tokens at a time."""

from dataclasses import dataclass
from typing import Any, Literal, Self, cast

import torch
from torch import Tensor, nn

from analyzers.language_models.ffn import family_of, text_config
from analyzers.language_models.prompts import IGNORED
from analyzers.language_models.side_by_side import side_by_side

# One piece of the logits: all of them at once would be the largest tensor of the run. With fewer rows the head's weights would be read
# over and over.
_BYTES = 8 << 20
_ROWS = 128
# Pieces that several threads work on may take so much together.
_TOGETHER = 32 << 20


@dataclass(frozen=True, slots=True)
class LogitMap:
    """From what a model's head gives to its logits: z = cap tanh(y / cap), y = factor / divisor times what it gives; without a cap, y."""

    factor: float = 1.0
    divisor: float = 1.0
    cap: float | None = None

    @classmethod
    def of(cls, model: nn.Module) -> Self:
        """Of a model or its outline, from the settings that its family has. Raises UnknownArchitecture for one that is not known."""
        config, family = text_config(model), family_of(model)
        factor, divisor = (1.0 if name is None else float(getattr(config, name)) for name in (family.multiplied, family.divided))
        return cls(factor, divisor, None if family.bounded is None else getattr(config, family.bounded))

    def __call__(self, given: Tensor) -> Tensor:
        """(.., V) to the same, by the operations of the model itself, so that not one bit differs."""
        if self.factor != 1:
            given = given * self.factor
        if self.divisor != 1:
            given = given / self.divisor
        return given if self.cap is None else torch.tanh(given / self.cap) * self.cap


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
    head, finish = cast(Any, model).get_output_embeddings(), LogitMap.of(model)

    def some(first: int) -> tuple[Tensor, Tensor]:
        here = slice(first, first + piece)
        rows = hidden[samples[here], positions[here]].detach().requires_grad_()
        with torch.enable_grad():
            logits = finish(head(rows)).to(kind)
        # None of the operations behind the logits needs them on the way back: their gradient can stand in their place.
        of_logits = logits.detach()
        weighted = _cross_entropy(of_logits, *(each.to(logits.device) for each in (targets[here], weights[samples[here]])))
        gradient[samples[here], positions[here]] = torch.autograd.grad(logits, rows, of_logits)[0]
        return samples[here], weighted.to(rows.device)

    # What moves a head's weights to where they are needed does that for one caller at a time.
    alone = type(head) is not nn.Linear or hasattr(head, "_hf_hook")
    at_once = 1 if alone else max(1, _TOGETHER // _piece_bytes(model, kind))
    for of_samples, weighted in side_by_side(some, range(0, len(targets), piece), hidden.device, at_once):
        losses.index_add_(0, of_samples, weighted)
    return losses, gradient


def _cross_entropy(logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """(n,), the weighted cross-entropy of each row, whose gradient it puts in the place of ``logits`` (n, V)."""
    if logits.device.type == "cpu" and logits.dtype == torch.float32 and logits.is_contiguous():
        from analyzers.numerics.layers import cross_entropy

        return torch.from_numpy(cross_entropy(logits.numpy(), targets.numpy(), weights.numpy()))
    logs, places = logits.log_softmax(1), targets[:, None]
    torch.exp(logs, out=logits)
    logits.scatter_add_(1, places, -torch.ones_like(places, dtype=logits.dtype)).mul_(weights[:, None])
    return logs.gather(1, places)[:, 0].mul_(weights).neg_()


def logits_bytes(model: nn.Module, dtype: torch.dtype) -> int:
    """At most what `losses_and_gradient` takes in a model of that ``dtype``: its pieces of the logits four times."""
    return 4 * max(_TOGETHER, _piece_bytes(model, torch.promote_types(dtype, torch.float32)))


def _piece_bytes(model: nn.Module, kind: torch.dtype) -> int:
    return _piece(model, kind) * kind.itemsize * int(text_config(model).vocab_size)


def _piece(model: nn.Module, kind: torch.dtype) -> int:
    """Rows of logits at a time."""
    return max(_ROWS, _BYTES // (kind.itemsize * int(text_config(model).vocab_size)))
