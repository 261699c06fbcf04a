"""The end of a language model: what stands between its last layer and its logits, and the head's own numbers.

Logits are ``z = cap tanh(scale (W h + b) / cap)``, h = tail(x), with x what a decoder layer gives; without a cap ``z = scale (W h + b)``.
The tail is the final norm and, in a few models, a projection behind it. Axes: n tokens, V vocabulary, d width of h.
"""

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from analyzers.checkpoints import quoted
from analyzers.errors import UnknownArchitecture
from analyzers.language_models.failures import running
from analyzers.language_models.ffn import decoder_layers, text_config
from analyzers.language_models.head import LogitMap
from analyzers.language_models.not_finite import not_finite

# Where families keep the norm behind their last layer, and what may follow it.
_NORMS = ("norm", "ln_f", "norm_f", "final_layer_norm", "final_layernorm", "embedding_norm", "layer_norm")
_BEHIND = "project_out"
_CLOSE = {torch.float32: 1e-3, torch.float64: 1e-9}
_CLOSE_NARROW = 0.1


@dataclass(frozen=True, eq=False, slots=True)
class ModelHead:
    """Weight (V, d) and bias (V,) of a head as they are, what its result is multiplied by and bounded with, and the modules before it.

    tied: the weight is that of the input embeddings too.
    """

    weight: Tensor
    bias: Tensor | None
    scale: float
    cap: float | None
    norms: tuple[nn.Module, ...]
    tied: bool

    @classmethod
    def of(cls, model: nn.Module) -> "ModelHead":
        """Of a model or its outline. Raises UnknownArchitecture, naming the model type, where there is no head that is one linear map."""
        whole, config = cast(Any, model), text_config(model)
        head, decoder = whole.get_output_embeddings(), whole.get_decoder()
        kind = quoted(str(config.model_type))
        if not isinstance(head, nn.Linear):
            raise UnknownArchitecture(f"Models of the type {kind} have no head that is one linear map, whose feedback could be measured.")
        found = next((name for name in _NORMS if hasattr(decoder, name)), None)
        if found is None:
            raise UnknownArchitecture(f"Where models of the type {kind} have their final norm is not known.")
        norms = tuple(each for each in (getattr(decoder, found), getattr(decoder, _BEHIND, None)) if each is not None)
        finish = LogitMap.of(model)
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
        """V."""
        return len(self.weight)

    @property
    def width(self) -> int:
        """d."""
        return self.weight.shape[1]

    def tail(self, hidden: Tensor) -> Tensor:
        """h (n, d) from what a decoder layer gives, (n, d of the layers)."""
        for module in self.norms:
            hidden = module(hidden)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """z (n, V) from h (n, d)."""
        raw = self.scale * nn.functional.linear(hidden.to(self.weight.device), self.weight, self.bias)
        return raw if self.cap is None else self.cap * torch.tanh(raw / self.cap)

    def before(self, inner: Tensor, signals: list[Tensor]) -> list[Tensor]:
        """Each gradient with respect to h (n, d) as the gradient with respect to what entered the tail at ``inner`` that it stands for."""
        if not self.norms:
            return signals
        leaf = inner.detach().requires_grad_()
        with torch.enable_grad():
            given = self.tail(leaf)
        return [torch.autograd.grad(given, leaf, each.to(given), retain_graph=True)[0] for each in signals]

    @torch.no_grad()
    def check(self, model: nn.Module, token_ids: Tensor) -> None:
        """Raise UnknownArchitecture unless this is what the model does with a row of tokens (1, L), InvalidCheckpoint for no numbers.

        A family may do something to its logits that is not known here; to measure another head than the model's would be worse than none.
        """
        whole, layers = cast(Any, model), []
        hook = last_layer(model).register_forward_hook(lambda module, given, result: layers.append(first(result)))
        try:
            with running():
                expected = whole(input_ids=token_ids, use_cache=False).logits[0]
        finally:
            hook.remove()
        found = self.logits(self.tail(layers[0].reshape(-1, layers[0].shape[-1]))).to(expected.device)
        if not torch.isfinite(expected).all():
            raise not_finite("The model's logits", expected.dtype)
        close = _CLOSE.get(found.dtype, _CLOSE_NARROW) * float(expected.abs().max().clamp(min=1e-6))
        if found.shape != expected.shape or float((found.float() - expected.float()).abs().max()) > close:
            kind = quoted(str(text_config(model).model_type))
            raise UnknownArchitecture(f"How models of the type {kind} come from their last layer to logits is not known.")


def last_layer(model: nn.Module) -> nn.Module:
    """The decoder's last layer."""
    return decoder_layers(model)[-1]


def first(result: Any) -> Tensor:
    """The hidden states among what a layer returns."""
    return cast(Tensor, result[0] if isinstance(result, tuple) else result)
