"""Ways of running a model: changes to thrown-away copies of its layers, so that some parts run in fp32 and the rest in the variant's dtype.

Weights are rounded and cast when a copy is made. Linear maps cast their input to the dtype of their weights; norms and the head compute in
the wider of both dtypes; sums promote, as always in torch. So a residual stream in fp32 stays in fp32.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch import Tensor, nn

from analyzers.checkpoints import quoted
from analyzers.core.errors import InvalidRequest
from analyzers.language_models.ffn import attention_of, decoder_layers, text_config
from analyzers.language_models.load import OpenModel
from analyzers.language_models.loaded_dtypes import LoadedDtypes, loaded_dtypes
from analyzers.precision.quantization import fake_quantized
from analyzers.precision.variants import Part, Quantization, Settings

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
Role = Literal["norm", "router", "map", "head", "other"]
_PART_OF_ROLE: dict[Role, Part] = {"norm": "norms", "router": "router", "head": "lm_head"}
_Forward = Callable[..., Any]
_OUTPUTS = ("o_proj", "out_proj", "dense", "c_proj")  # names of the output projection of an attention


def role_of(name: str, module: nn.Module) -> Role:
    """Return the part that a module of the decoder plays: norm, router (of experts, or the gate of a shared expert), map or other."""
    kind = type(module).__name__
    if "Norm" in kind:
        return "norm"
    if kind.endswith("Router") or name.endswith("shared_expert_gate"):
        return "router"
    wide = any(parameter is not None and parameter.dim() > 1 for parameter in module._parameters.values())
    return "map" if wide and not isinstance(module, nn.Embedding | nn.Conv1d) else "other"


@dataclass(frozen=True, slots=True)
class Rounding:
    """Rounding of the weights before a run. dtype: the target, for parameters that transformers loads in it or, if ``every``, for all;
    weights: quantization of the layers' linear maps. before: a dtype to which weights are rounded before they are quantized, as engines do.
    """

    dtype: torch.dtype
    weights: Quantization | None
    every: bool = False
    before: torch.dtype | None = None

    @classmethod
    def of(cls, settings: Settings) -> "Rounding":
        """Return the rounding that a variant with these settings applies."""
        return cls(DTYPES[settings.dtype], settings.weights, settings.round == "all")


STORED = Rounding(torch.float32, None)


@dataclass(eq=False, slots=True)
class RunnableModel:
    """A model with what its runs share: names of parameters, of tied ones the first; and the dtypes of each
    parameter and buffer as transformers loads them.
    """

    model: Any
    names: dict[str, str] = field(init=False)
    _loaded: dict[torch.dtype, LoadedDtypes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        first = {parameter: name for name, parameter in self.model.named_parameters()}
        every = self.model.named_parameters(remove_duplicate=False)
        self.names = {name: first[parameter] for name, parameter in every}

    @property
    def layers(self) -> int:
        """The number of decoder layers."""
        return len(decoder_layers(self.model))

    @property
    def has_router(self) -> bool:
        """Return whether a layer has a router."""
        return any(role_of(name, module) == "router" for name, module in self.model.get_decoder().named_modules())

    def loaded(self, dtype: torch.dtype) -> LoadedDtypes:
        """Return the model's tensors as transformers loads them in ``dtype``."""
        if dtype not in self._loaded:
            self._loaded[dtype] = loaded_dtypes(self.model, dtype)
        return self._loaded[dtype]


class Casts:
    """Prepares copies of a model's parts for one way of running it (`stages.Prepare`). device: "cpu" or "cuda", for autocast."""

    def __init__(self, model: RunnableModel, settings: Settings, rounding: Rounding, device: str) -> None:
        self._model = model
        self._settings = settings
        self._rounding = rounding
        self._device = device
        self._dtype = DTYPES[settings.dtype]
        self._weights_dtype = torch.float32 if settings.autocast else self._dtype
        self._narrow = self._dtype != torch.float32 and not settings.autocast
        self._stream = torch.float32 if "residual" in settings.fp32 else self._dtype

    def __call__(self, copy: nn.Module, name: str) -> None:
        """Cast weights and buffers, and put casts into forwards. copy: of the layer ``name``, or for "" of what is outside the layers."""
        whole: Any = copy
        head = whole.get_output_embeddings() if not name else None
        within = {part for layer in decoder_layers(copy) for part in layer.modules()} if not name else set()
        attention = attention_of(self._model.model, copy) if name else None
        for inner, module in copy.named_modules():
            if module in within:
                continue
            path = ".".join(filter(None, (name, inner)))
            role: Role = "head" if module is head else role_of(path, module)
            self._cast_weights(module, path, role, bool(name))
            self._cast_buffers(module, path)
            change = self._forward_of(module, role, attention)
            if change is not None:
                module.forward = change(module.forward)
        if name:
            self._cast_stream(copy)
        elif self._settings.autocast:
            decoder = whole.get_decoder()
            decoder.forward = self._in_autocast(decoder.forward)

    def _autocast(self, enabled: bool = True) -> AbstractContextManager[Any]:
        """Return a context of autocast as the settings say, or off."""
        if not self._settings.autocast:
            return nullcontext()
        return torch.autocast(self._device, self._dtype, enabled=enabled, cache_enabled=False)

    def _in_autocast(self, forward: _Forward) -> _Forward:
        def run(*positional: Any, **keywords: Any) -> Any:
            with self._autocast():
                return forward(*positional, **keywords)

        return run

    def _cast_weights(self, module: nn.Module, path: str, role: Role, in_layer: bool) -> None:
        """Replace the module's parameters by leaves of their own."""
        for key, parameter in module._parameters.items():
            if parameter is not None and parameter.is_floating_point() and not parameter.is_meta:
                value = self._value(module, key, self._model.names[f"{path}.{key}"], role, parameter.detach(), in_layer)
                module._parameters[key] = nn.Parameter(value)

    def _value(self, module: nn.Module, key: str, name: str, role: Role, value: Tensor, in_layer: bool) -> Tensor:
        transposed = type(module).__name__ == "Conv1D" or bool(getattr(module, "is_transposed", False))
        quantization = self._settings.weights or self._rounding.weights
        value = value if self._rounding.before is None else value.to(self._rounding.before).to(value.dtype)
        if quantization is not None and in_layer and role == "map" and value.dim() > 1 and not key.endswith("bias"):
            value = fake_quantized(value.mT, quantization).mT if transposed else fake_quantized(value, quantization)
        value = value.to(self._kind(name, self._rounding.dtype, self._rounding.every)).to(torch.float32)
        in_fp32 = _PART_OF_ROLE.get(role) in self._settings.fp32
        return value if in_fp32 else value.to(self._kind(name, self._weights_dtype, self._settings.round == "all"))

    def _cast_buffers(self, module: nn.Module, path: str) -> None:
        """Give buffers the dtype, or if they are not stored the values, that transformers gives them."""
        if self._weights_dtype == torch.float32:
            return
        loaded = self._model.loaded(self._weights_dtype)
        routed = any(role_of(path, each) == "router" for each in (module, *module.children()))
        if routed and "router" in self._settings.fp32:  # a router's corrections may be its parent's
            return
        for key, value in module._buffers.items():
            if value is not None:
                name = f"{path}.{key}"
                buffer = loaded.computed[name] if name in loaded.computed else value.to(loaded.dtypes[name])
                module._buffers[key] = value if buffer.dtype == value.dtype else buffer.to(value.device)

    def _kind(self, name: str, dtype: torch.dtype, every: bool) -> torch.dtype:
        """Return the dtype of a parameter in a model in ``dtype``."""
        return dtype if every or dtype == torch.float32 else self._model.loaded(dtype).dtypes[name]

    def _cast_stream(self, layer: nn.Module) -> None:
        """Let the hidden states that enter and leave a layer have the dtype of the residual stream."""
        forward = layer.forward

        def run(*positional: Any, **keywords: Any) -> Any:
            if not self._narrow:
                with self._autocast():
                    return forward(*positional, **keywords)
            if positional:
                positional = (positional[0].to(self._stream), *positional[1:])
            else:
                keywords = {**keywords, "hidden_states": keywords["hidden_states"].to(self._stream)}
            result = forward(*positional, **keywords)
            return (result[0].to(self._stream), *result[1:]) if isinstance(result, tuple) else result.to(self._stream)

        if self._narrow or self._settings.autocast:
            layer.forward = run

    def _forward_of(self, module: nn.Module, role: Role, attention: nn.Module | None) -> Callable[[_Forward], _Forward] | None:
        """Return the function that puts the module's casts around its forward, None where it has none."""
        upcast = "softmax" in self._settings.fp32
        if not self._narrow and not self._settings.autocast:
            return None
        if attention is not None and module is attention:
            return self._attention(upcast)
        if role == "norm":
            return self._norm(module) if self._narrow else None
        if role == "head":
            return self._head(module)
        if upcast and "RotaryEmbedding" in type(module).__name__:
            return lambda forward: lambda hidden, *others, **named: forward(hidden.float(), *others, **named)
        if role == "router" and self._narrow and "router" not in self._settings.fp32:  # its weights may be fp32 nevertheless
            return lambda forward: lambda hidden, *others: forward(hidden.to(self._dtype), *others)
        if role in ("map", "router"):
            inputs = [] if attention is None else [each for key, each in attention.named_modules() if key.split(".")[-1] not in _OUTPUTS]
            return self._map(module, role == "router" and "router" in self._settings.fp32, upcast and module in inputs)
        return None

    def _attention(self, upcast: bool) -> Callable[[_Forward], _Forward]:
        """Attention in fp32 except for its projections, or, if only the residual stream is wider, in the variant's dtype."""
        dtype = torch.float32 if upcast else self._dtype

        def make(forward: _Forward) -> _Forward:
            def run(*positional: Any, **keywords: Any) -> Any:
                # Further positional arguments are the residual, in families that add it inside attention.
                positional = (_cast(positional[0], dtype), *positional[1:]) if positional else positional
                cast = {name: _cast(value, dtype) if upcast or name == "hidden_states" else value for name, value in keywords.items()}
                with self._autocast(False):
                    return forward(*positional, **cast)

            return run

        return make if upcast or self._narrow else lambda forward: forward

    def _head(self, head: nn.Module) -> Callable[[_Forward], _Forward]:
        wide = self._settings.autocast and "lm_head" in self._settings.fp32

        def make(forward: _Forward) -> _Forward:
            def run(hidden: Tensor) -> Any:
                with self._autocast(not wide):
                    return forward(hidden.float() if wide else hidden.to(_dtype_of(head)) if self._narrow else hidden)

            return run

        return make

    def _norm(self, module: nn.Module) -> Callable[[_Forward], _Forward]:
        def make(forward: _Forward) -> _Forward:
            def run(hidden: Tensor, *others: Any) -> Tensor:
                own = _dtype_of(module, hidden.dtype)
                wide = torch.promote_types(own, hidden.dtype)
                parameters: dict[str, Any] = module._parameters
                narrow = dict(parameters)
                try:  # cast within the forward, so that the gradients of weights have their dtype
                    parameters.update({key: value if value is None else value.to(wide) for key, value in narrow.items()})
                    result: Tensor = forward(hidden.to(wide), *others)
                finally:
                    parameters.update(narrow)
                return result.to(hidden.dtype)

            return run

        return make

    def _map(self, module: nn.Module, plain: bool, widen: bool) -> Callable[[_Forward], _Forward]:
        """plain: without autocast; widen: cast the output to fp32."""

        def make(forward: _Forward) -> _Forward:
            def run(hidden: Tensor, *positional: Any, **keywords: Any) -> Any:
                with self._autocast(not plain):
                    result = forward(hidden.to(_dtype_of(module)) if self._narrow or plain else hidden, *positional, **keywords)
                return result.float() if widen else result

            return run

        return make


def _dtype_of(module: nn.Module, default: torch.dtype = torch.float32) -> torch.dtype:
    """Return the dtype of the module's current parameters."""
    return next((value.dtype for value in module._parameters.values() if value is not None), default)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """Cast floating-point tensors, also in tuples, to ``dtype``."""
    if isinstance(value, Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    return tuple(_cast(item, dtype) for item in value) if isinstance(value, tuple) else value


# Families whose attention class is chosen at construction and cannot be changed afterwards.
_BUILT_IN = ("gptj", "gpt_neo", "falcon", "bloom")
_REDUCED = ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction")


def implementation(name: str, settings: Settings, opened: OpenModel) -> str:
    """Return the name of its attention in transformers. Raises InvalidRequest where that is not available."""
    asked, kind = settings.attention or opened.attention, quoted(str(text_config(opened.outline).model_type))
    can_flash = getattr(opened.outline, "_supports_flash_attn", False) and text_config(opened.outline).model_type not in _BUILT_IN
    if asked == "sdpa" and opened.attention != "sdpa" and not getattr(opened.outline, "_supports_sdpa", False):
        raise InvalidRequest(f"Variant {name} asks for sdpa attention, which models of type {kind} do not support: choose eager.")
    if asked == "flash" and (not can_flash or opened.runs_on != "cuda" or find_spec("flash_attn") is None or "softmax" in settings.fp32):
        raise InvalidRequest(
            f"Variant {name} asks for flash attention, which takes a GPU, flash-attn, a model that supports it (not {kind}?) and 16 bits: "
            "choose sdpa."
        )
    return "flash_attention_2" if asked == "flash" else asked


@contextmanager
def attention(config: Any, implementation: str) -> Iterator[None]:
    """Return a context in which the attention of the model of this configuration runs by this implementation."""
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
    """Return a context with, on a GPU: TF32 only for dtype "tf32", and reductions of 16-bit products as set. A CPU has neither setting."""
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
