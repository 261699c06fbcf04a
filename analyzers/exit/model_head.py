"""The head of a language model: its parameters, and the modules between the last layer and the head.

Logits are ``z = cap tanh(scale (W h + b) / cap)``, h = tail(x), x the output of a decoder layer; without a cap ``z = scale (W h + b)``.
The tail is the final norm and, in a few models, a projection after it. Axes: n tokens, V vocabulary, d width of h.
"""

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from analyzers.checkpoints import quoted
from analyzers.core.errors import InvalidCheckpoint, UnknownArchitecture
from analyzers.language_models.ffn import family_of, text_config
from analyzers.language_models.model_failures import not_finite, running
from analyzers.language_models.stages import Stages

# Attributes of a decoder that hold the norm after the last layer, and the projection that may follow it.
_NORMS = ("norm", "ln_f", "norm_f", "final_layer_norm", "final_layernorm", "embedding_norm", "layer_norm")
_PROJECTION = "project_out"
_CLOSE = {torch.float32: 1e-3, torch.float64: 1e-9}
_CLOSE_NARROW = 0.1
_CHECKED = 16  # Tokens on which the logits are compared with the model's own.


@dataclass(frozen=True, eq=False, slots=True)
class ModelHead:
    """Weight (V, d) and bias (V,) of a head, scale and softcap of its logits, and the modules before it.

    tied: the weight is shared with the input embeddings.
    """

    weight: Tensor
    bias: Tensor | None
    scale: float
    cap: float | None
    norms: tuple[nn.Module, ...]
    tied: bool

    @classmethod
    def of(cls, model: nn.Module) -> "ModelHead":
        """Find the head of a model or its outline. Raises UnknownArchitecture, naming the model type, if the head is not one linear map;
        InvalidCheckpoint if its logits are scaled by 0.
        """
        whole, config = cast(Any, model), text_config(model)
        head, decoder = whole.get_output_embeddings(), whole.get_decoder()
        kind = quoted(str(config.model_type))
        if not isinstance(head, nn.Linear):
            raise UnknownArchitecture(
                f"Models of the type {kind} have no head that is one linear map, which is what exit feedback measures."
            )
        norm = next((name for name in _NORMS if hasattr(decoder, name)), None)
        if norm is None:
            raise UnknownArchitecture(f"The final norm of models of the type {kind} is not known.")
        norms = tuple(module for module in (getattr(decoder, norm), getattr(decoder, _PROJECTION, None)) if module is not None)
        scale, cap = _finish(model)
        if 0 in (scale, cap):
            raise InvalidCheckpoint("config.json multiplies, divides or bounds the logits by 0: nothing is left of them.")
        return cls(
            weight=head.weight,
            bias=head.bias,
            scale=scale,
            cap=cap,
            norms=norms,
            tied=head.weight is whole.get_input_embeddings().weight,
        )

    @property
    def vocabulary(self) -> int:
        """The size of the vocabulary, V."""
        return len(self.weight)

    @property
    def width(self) -> int:
        """The width of the hidden states, d."""
        return self.weight.shape[1]

    def tail(self, hidden: Tensor) -> Tensor:
        """Compute h (n, d) from the output of a decoder layer, whose width may differ."""
        for module in self.norms:
            hidden = module(hidden)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Compute z (n, V) from h (n, d)."""
        scaled = self.scale * nn.functional.linear(hidden.to(self.weight.device), self.weight, self.bias)
        return scaled if self.cap is None else self.cap * torch.tanh(scaled / self.cap)

    def before(self, inner: Tensor, signals: list[Tensor]) -> list[Tensor]:
        """Backpropagate gradients with respect to h, (n, d) each, through the tail to its input ``inner``."""
        if not self.norms:
            return signals
        leaf = inner.detach().requires_grad_()
        with torch.enable_grad():
            h = self.tail(leaf)
        return [torch.autograd.grad(h, leaf, signal.to(h), retain_graph=True)[0] for signal in signals]

    @torch.no_grad()
    def check(self, stages: Stages, hidden: Tensor) -> None:
        """Raise UnknownArchitecture unless `logits` equal the model's own for outputs of its last layer (n, ..), InvalidCheckpoint if these
        are not finite.

        A model may transform its logits in an unknown way, and a wrong head must not be measured.
        """
        with running():
            expected = stages.head(hidden[:_CHECKED])
        logits = self.logits(self.tail(hidden[:_CHECKED])).to(expected.device)
        if not torch.isfinite(expected).all():
            raise not_finite("The model's logits", expected.dtype)
        close = _CLOSE.get(logits.dtype, _CLOSE_NARROW) * float(expected.abs().max().clamp(min=1e-6))
        if logits.shape != expected.shape or float((logits.float() - expected.float()).abs().max()) > close:
            kind = quoted(str(text_config(stages.outside).model_type))
            raise UnknownArchitecture(f"How models of the type {kind} compute logits from their last layer is not known.")


def _finish(model: nn.Module) -> tuple[float, float | None]:
    """Return the scale and the soft cap of a model's logits, from its family's settings; a divisor of 0 gives the scale 0."""
    config, family = text_config(model), family_of(model)
    if config is not cast(Any, model).config:  # multimodal models of transformers omit what their text models do to logits
        return 1.0, None
    factor, divisor = (1.0 if name is None else float(getattr(config, name)) for name in (family.multiplied, family.divided))
    return factor / divisor if divisor else 0.0, None if family.bounded is None else getattr(config, family.bounded)
