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
from analyzers.language_models.ffn import decoder_layers, text_config
from analyzers.language_models.lm_head import LogitMap, unknown_logits
from analyzers.language_models.model_failures import not_finite, running

# Attributes of a decoder that hold the norm after the last layer, and the projection that may follow it.
_NORMS = ("norm", "ln_f", "norm_f", "final_layer_norm", "final_layernorm", "embedding_norm", "layer_norm")
_PROJECTION = "project_out"
_CLOSE = {torch.float32: 1e-3, torch.float64: 1e-9}
_CLOSE_NARROW = 0.1


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
        finish = LogitMap.of(model)
        if 0 in (finish.factor, finish.divisor, finish.cap):
            raise InvalidCheckpoint("config.json multiplies, divides or bounds the logits by 0: nothing is left of them.")
        return cls(
            weight=head.weight,
            bias=head.bias,
            scale=finish.factor / finish.divisor,
            cap=finish.cap,
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
    def check(self, model: nn.Module, token_ids: Tensor) -> None:
        """Raise UnknownArchitecture unless `logits` equal the model's own for tokens (1, L), InvalidCheckpoint if these are not finite.

        A model may transform its logits in an unknown way, and a wrong head must not be measured.
        """
        whole, outputs = cast(Any, model), []
        hook = decoder_layers(model)[-1].register_forward_hook(lambda module, args, output: outputs.append(hidden_of(output)))
        try:
            with running():
                expected = whole(input_ids=token_ids, use_cache=False).logits[0]
        finally:
            hook.remove()
        logits = self.logits(self.tail(outputs[0].reshape(-1, outputs[0].shape[-1]))).to(expected.device)
        if not torch.isfinite(expected).all():
            raise not_finite("The model's logits", expected.dtype)
        close = _CLOSE.get(logits.dtype, _CLOSE_NARROW) * float(expected.abs().max().clamp(min=1e-6))
        if logits.shape != expected.shape or float((logits.float() - expected.float()).abs().max()) > close:
            raise unknown_logits(model)


def hidden_of(output: Any) -> Tensor:
    """Return the hidden states in the output of a layer."""
    return cast(Tensor, output[0] if isinstance(output, tuple) else output)
