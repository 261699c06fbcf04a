"""The casts between modules of different precision, which let some parts run in fp32 and the rest in the variant's dtype.

While a stage runs, modules have these forwards in place of their own. Linear maps cast their input to the dtype of their weights; norms
and the head compute in the wider of both dtypes; sums promote, as always in torch. So a residual stream in fp32 stays in fp32.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from analyzers.checkpoints import quoted
from analyzers.core.errors import InvalidRequest
from analyzers.language_models.ffn import text_config
from analyzers.language_models.load import OpenModel
from analyzers.precision_variants.model_parts import AttentionParts, ModelParts
from analyzers.precision_variants.variant_weights import DTYPES, Leaf, in_place
from analyzers.precision_variants.variants import Settings

Forward = Callable[..., Any]


class Casts:
    """The casts of one variant. device: "cpu" or "cuda", for autocast."""

    def __init__(self, anatomy: ModelParts, settings: Settings, device: str) -> None:
        self.anatomy = anatomy
        self.settings = settings
        self._device = device
        self._dtype = DTYPES[settings.dtype]
        self._stream = torch.float32 if "residual" in settings.fp32 else self._dtype

    @property
    def narrow(self) -> bool:
        """True if the variant casts anything."""
        return self._dtype != torch.float32 and not self.settings.autocast

    def autocast(self, enabled: bool = True) -> AbstractContextManager[Any]:
        """Autocast as the settings say, or off."""
        if not self.settings.autocast:
            return nullcontext()
        return torch.autocast(self._device, self._dtype, enabled=enabled, cache_enabled=False)

    def to_stream(self, hidden: Tensor) -> Tensor:
        """Hidden states in the dtype of the residual stream."""
        return hidden.to(self._stream) if self.narrow else hidden

    def forward(self, module: nn.Module, attention: AttentionParts | None) -> Forward | None:
        """The module's forward with its casts, None where it has none. attention: that of its layer."""
        make = self._forward_of(module, attention) if self.narrow or self.settings.autocast else None
        return None if make is None else make(module.forward)

    def logits(self, hidden: Tensor) -> Tensor:
        """The head's output (.., V) for (.., d); its parameters are already replaced."""
        head = self.anatomy.head
        if self.settings.autocast and "lm_head" in self.settings.fp32:
            with self.autocast(False):
                return _tensor(head(hidden.float()))
        return _tensor(head(hidden.to(_dtype_of(head)) if self.narrow else hidden))

    def _forward_of(self, module: nn.Module, attention: AttentionParts | None) -> Callable[[Forward], Forward] | None:
        role, upcast = self.anatomy.roles[module], "softmax" in self.settings.fp32
        if attention is not None and module is attention.module:
            return self._attention(upcast)
        if role == "norm":
            return self._norm(module) if self.narrow else None
        if upcast and "RotaryEmbedding" in type(module).__name__:
            return lambda forward: lambda hidden, *others, **named: forward(hidden.float(), *others, **named)
        if role in ("map", "router"):
            widen = upcast and attention is not None and module in attention.projections
            if role == "router" and self.narrow and "router" not in self.settings.fp32:
                return lambda forward: (
                    lambda hidden, *others: forward(hidden.to(self._dtype), *others)
                )  # its weights may be fp32 nevertheless
            return self._map(module, role == "router" and "router" in self.settings.fp32, widen)
        return None

    def _attention(self, upcast: bool) -> Callable[[Forward], Forward]:
        """Attention in fp32 except for its projections, or, if only the residual stream is wider, in the variant's dtype."""
        dtype = torch.float32 if upcast else self._dtype

        def make(forward: Forward) -> Forward:
            def run(*positional: Any, **keywords: Any) -> Any:
                # Further positional arguments are the residual, in families that add it inside attention.
                positional = (_cast(positional[0], dtype), *positional[1:]) if positional else positional
                cast = {name: _cast(value, dtype) if upcast or name == "hidden_states" else value for name, value in keywords.items()}
                with self.autocast(False):
                    return forward(*positional, **cast)

            return run

        return make if upcast or self.narrow else lambda forward: forward

    def _norm(self, module: nn.Module) -> Callable[[Forward], Forward]:
        def make(forward: Forward) -> Forward:
            def run(hidden: Tensor, *others: Any) -> Tensor:
                own = _dtype_of(module, hidden.dtype)
                wide = torch.promote_types(own, hidden.dtype)
                leaves = [
                    Leaf(module, key, "", value.to(wide)) for key, value in module._parameters.items() if value is not None and own != wide
                ]
                with in_place(leaves):
                    return _tensor(forward(hidden.to(wide), *others)).to(hidden.dtype)

            return run

        return make

    def _map(self, module: nn.Module, plain: bool, widen: bool) -> Callable[[Forward], Forward]:
        """plain: without autocast; widen: cast the output to fp32."""

        def make(forward: Forward) -> Forward:
            def run(hidden: Tensor, *positional: Any, **keywords: Any) -> Any:
                with self.autocast(not plain):
                    result = forward(hidden.to(_dtype_of(module)) if self.narrow or plain else hidden, *positional, **keywords)
                return result.float() if widen else result

            return run

        return make


def _dtype_of(module: nn.Module, default: torch.dtype = torch.float32) -> torch.dtype:
    """Dtype of the module's current parameters."""
    return next((value.dtype for value in module._parameters.values() if value is not None), default)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """Floating-point tensors, also in tuples, cast to ``dtype``."""
    if isinstance(value, Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    return tuple(_cast(item, dtype) for item in value) if isinstance(value, tuple) else value


def _tensor(value: Any) -> Tensor:
    assert isinstance(value, Tensor)
    return value


# Families whose attention class is chosen at construction and cannot be changed afterwards.
_BUILT_IN = ("gptj", "gpt_neo", "falcon", "bloom")
_REDUCED = ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction")


def implementation(name: str, settings: Settings, opened: OpenModel) -> str:
    """The name of its attention in transformers. Raises InvalidRequest where that is not available."""
    asked, kind = settings.attention or opened.attention, quoted(str(text_config(opened.outline).model_type))
    supports_flash = getattr(opened.outline, "_supports_flash_attn", False) and text_config(opened.outline).model_type not in _BUILT_IN
    problem = None
    if asked == "sdpa" and opened.attention != "sdpa" and not getattr(opened.outline, "_supports_sdpa", False):
        problem = f"sdpa attention, which models of type {kind} do not support: choose eager"
    elif asked == "flash" and find_spec("flash_attn") is None:
        problem = "flash attention, which is not installed: pip install flash-attn, or choose sdpa"
    elif asked == "flash" and opened.runs_on != "cuda":
        problem = "flash attention, which needs a GPU: choose sdpa"
    elif asked == "flash" and not supports_flash:
        problem = f"flash attention, which models of type {kind} do not support: choose sdpa"
    elif asked == "flash" and "softmax" in settings.fp32:
        problem = "flash attention in fp32, which does not exist: leave out softmax, or choose sdpa"
    if problem is not None:
        raise InvalidRequest(f"Variant {name} asks for {problem}.")
    return "flash_attention_2" if asked == "flash" else asked


@contextmanager
def attention(config: Any, implementation: str) -> Iterator[None]:
    """Within the context, the attention of the model of this configuration runs by this implementation."""
    before = config._attn_implementation
    if before == implementation:  # setting it validates the whole configuration
        yield
        return
    config._attn_implementation = implementation
    try:
        yield
    finally:
        config._attn_implementation = before


@contextmanager
def arithmetic(settings: Settings, device: str) -> Iterator[None]:
    """Within the context on a GPU: TF32 only for dtype "tf32", and reductions of 16-bit products as set. A CPU has neither setting."""
    if device != "cuda":
        yield
        return
    matmul = torch.backends.cuda.matmul
    precision, reduced = torch.get_float32_matmul_precision(), {name: getattr(matmul, name) for name in _REDUCED}
    try:
        torch.set_float32_matmul_precision("high" if settings.dtype == "tf32" else "highest")
        for name in _REDUCED:
            setattr(matmul, name, settings.reduced_reductions)
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
        for name, value in reduced.items():
            setattr(matmul, name, value)
