"""Computes per-sample losses at the language-model head and their gradient with respect to the decoder's output, in chunks of tokens."""

from dataclasses import dataclass
from typing import Any, Literal, Self, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from analyzers.checkpoints import quoted
from analyzers.core.errors import UnknownArchitecture
from analyzers.language_models.ffn import family_of, text_config
from analyzers.language_models.model_failures import running
from analyzers.language_models.prompts import IGNORED

# Size of a chunk of logits: all logits at once would be the largest tensor of the run; smaller chunks would read the head's weights often.
_CHUNK_BYTES = 16 << 20
_CHUNK_ROWS = 128
_CLOSE = 1e-3  # tolerance between logits computed twice by the same operations


@dataclass(frozen=True, slots=True)
class LogitMap:
    """The map from the output x of a model's head to its logits z.

    z = cap tanh(y / cap) with y = factor / divisor x; without a cap, z = y.
    """

    factor: float = 1.0
    divisor: float = 1.0
    cap: float | None = None

    @classmethod
    def of(cls, model: nn.Module) -> Self:
        """Return the map of a model or its outline, from its family's settings. Raises UnknownArchitecture for an unsupported family."""
        config, family = text_config(model), family_of(model)
        if config is not cast(Any, model).config:  # multimodal models of transformers omit what their text models do to logits
            return cls()
        factor, divisor = (1.0 if name is None else float(getattr(config, name)) for name in (family.multiplied, family.divided))
        return cls(factor, divisor, None if family.bounded is None else getattr(config, family.bounded))

    def __call__(self, output: Tensor) -> Tensor:
        """Map (.., V) to (.., V), with the model's own operations, so that results are bit-identical."""
        if self.factor != 1:
            output = output * self.factor
        if self.divisor != 1:
            output = output / self.divisor
        return output if self.cap is None else torch.tanh(output / self.cap) * self.cap


def losses_and_gradient(model: nn.Module, hidden: Tensor, labels: Tensor, loss: Literal["mean", "sum"]) -> tuple[Tensor, Tensor]:
    """Compute the per-sample cross-entropy (nats) of the answer tokens, and the gradient of the sum of these losses.

    hidden: (S, L - 1, d), the decoder's output for each token but the last; labels: (S, L), token ids, IGNORED outside the answers; the
    label at position t is predicted from t - 1. loss: mean or sum over a sample's answer tokens.
    Returns (S,) float32 (float64 for a float64 model), and (S, L - 1, d), zero where no label follows.
    """
    samples, positions = (labels[:, 1:] != IGNORED).nonzero(as_tuple=True)
    targets = labels[samples, positions + 1].to(hidden.device)
    samples, positions = samples.to(hidden.device), positions.to(hidden.device)
    kind = torch.promote_types(hidden.dtype, torch.float32)
    counts = torch.bincount(samples, minlength=len(hidden)).clamp(min=1)
    weights = torch.ones_like(counts, dtype=kind) if loss == "sum" else 1 / counts.to(kind)
    losses = torch.zeros(len(hidden), dtype=kind, device=hidden.device)
    gradient = torch.zeros_like(hidden)
    head, logit_map = cast(Any, model).get_output_embeddings(), LogitMap.of(model)
    chunks = (torch.split(each, _rows(model, kind)) for each in (samples, positions, targets))
    for sample, position, target in zip(*chunks, strict=True):
        rows = hidden[sample, position].detach().requires_grad_()
        with torch.enable_grad():
            logits = logit_map(head(rows)).to(kind)
            of_tokens = cross_entropy(logits, target.to(logits.device), reduction="none") * weights[sample].to(logits.device)
        (gradient[sample, position],) = torch.autograd.grad(of_tokens.sum(), rows)
        losses.index_add_(0, sample, of_tokens.detach().to(rows.device))
    return losses, gradient


@torch.no_grad()
def check_logits(model: nn.Module, token_ids: Tensor) -> None:
    """Raise UnknownArchitecture unless `LogitMap` gives the model's own logits for tokens (1, L), run once as a whole.

    Guards against families that transform logits in an unknown way: the losses would be wrong.
    """
    whole, outputs = cast(Any, model), list[Tensor]()
    hook = whole.get_decoder().register_forward_hook(lambda module, inputs, output: outputs.append(output.last_hidden_state))
    try:
        with running():
            expected = whole(input_ids=token_ids, use_cache=False).logits
    finally:
        hook.remove()
    logits = LogitMap.of(model)(whole.get_output_embeddings()(outputs[0]))
    if logits.shape != expected.shape or not torch.allclose(logits, expected, rtol=_CLOSE, atol=_CLOSE, equal_nan=True):
        raise unknown_logits(model)


def unknown_logits(model: nn.Module) -> UnknownArchitecture:
    """Return the error for a model that transforms its logits in an unknown way."""
    kind = quoted(str(text_config(model).model_type))
    return UnknownArchitecture(f"How models of the type {kind} compute logits from their last layer is not known.")


def logits_bytes(model: nn.Module, dtype: torch.dtype) -> int:
    """Bound the peak memory in bytes of `losses_and_gradient` for a model of this ``dtype``: four times a chunk of logits."""
    kind = torch.promote_types(dtype, torch.float32)
    return 4 * _rows(model, kind) * kind.itemsize * int(text_config(model).vocab_size)


def _rows(model: nn.Module, kind: torch.dtype) -> int:
    """Return the number of rows per chunk of logits."""
    return max(_CHUNK_ROWS, _CHUNK_BYTES // (kind.itemsize * int(text_config(model).vocab_size)))
