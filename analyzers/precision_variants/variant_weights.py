"""The weights of a run: the stored ones cast or quantized as its settings say, made for one stage at a time.

The model's parameters are never written to. During a stage other tensors replace them; afterwards the parameters are restored.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, cast

import torch
from torch import Tensor, nn

from analyzers.core.errors import InvalidRequest
from analyzers.precision_variants.model_parts import ModelParts
from analyzers.precision_variants.variants import Quantization, Settings

_MX_BLOCK, _INT4_GROUP = 32, 128
_TINY = torch.finfo(torch.float32).tiny


def check_quantization(name: str, weights: Quantization) -> None:
    """Raise InvalidRequest where torchao is not installed."""
    if find_spec("torchao") is None:
        raise InvalidRequest(
            f"Variant {name} quantizes its weights ({weights}) with torchao, which is not installed: pip install torchao, or leave it out."
        )


def fake_quantized(weight: Tensor, weights: Quantization) -> Tensor:
    """A weight (outputs, inputs) quantized and dequantized, in fp32; experts (experts, outputs, inputs) one matrix at a time.

    int8 and fp8 (E4M3) have one scale per row, fp8_tensor one per matrix, int4 one per 128 values of a row, mxfp4 a power of two per 32.
    Raises InvalidRequest for rows whose length is not a multiple of mxfp4's blocks.
    """
    return torch.stack([_matrix(expert, weights) for expert in weight]) if weight.dim() == 3 else _matrix(weight, weights)


def _matrix(weight: Tensor, weights: Quantization) -> Tensor:
    if weights == "mxfp4" and weight.shape[1] % _MX_BLOCK:
        raise InvalidRequest(
            f"mxfp4 has blocks of {_MX_BLOCK} values, which do not divide rows of {weight.shape[1]} weights: leave it out."
        )
    if weights == "fp8_tensor":
        scale = weight.float().abs().amax().clamp(min=_TINY) / 448
        return (weight / scale).to(torch.float8_e4m3fn).float() * scale
    if weights == "int4":
        return torch.cat([_int4(group.float()) for group in torch.split(weight, _INT4_GROUP, 1)], 1)
    if weights == "mxfp4":
        from torchao.prototype.mx_formats.mx_tensor import MXTensor

        blocks: Any = MXTensor.to_mx(weight.contiguous(), torch.float4_e2m1fn_x2, _MX_BLOCK)
        return cast(Tensor, blocks.dequantize(torch.float32))
    from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig, quantize_

    holder = nn.Sequential(nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta"))
    holder[0].weight = nn.Parameter(weight.detach(), requires_grad=False)
    config: Any = Int8WeightOnlyConfig() if weights == "int8" else Float8WeightOnlyConfig()
    quantize_(holder, config)
    quantized: Any = holder[0].weight
    return cast(Tensor, quantized.dequantize().to(torch.float32))


def _int4(group: Tensor) -> Tensor:
    scale = group.abs().amax(1, keepdim=True).clamp(min=_TINY) / 7
    return (group / scale).round() * scale


DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_PART_OF_ROLE = {"norm": "norms", "router": "router", "head": "lm_head"}


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
        """The rounding that a variant with these settings applies."""
        return cls(DTYPES[settings.dtype], settings.weights, settings.round == "all")


STORED = Rounding(torch.float32, None)


@dataclass(frozen=True, eq=False, slots=True)
class Leaf:
    """A tensor that replaces parameter or buffer ``key`` of ``module``; name: of it in the model."""

    module: nn.Module
    key: str
    name: str
    tensor: Tensor


@dataclass(frozen=True, eq=False, slots=True)
class Weights:
    """Makes the leaves of a run. rounding: applied before the settings (`STORED` for none)."""

    anatomy: ModelParts
    settings: Settings
    rounding: Rounding

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights; fp32 under autocast."""
        return torch.float32 if self.settings.autocast else DTYPES[self.settings.dtype]

    def leaves(self, modules: Iterable[nn.Module], in_layer: bool) -> list[Leaf]:
        """One leaf, requiring grad, per parameter of the modules themselves."""
        chosen = [
            (module, key, parameter)
            for module in modules
            for key, parameter in module._parameters.items()
            if parameter is not None and (module, key) in self.anatomy.names  # an adapter's matrices stay as they are
        ]
        values = [self._value(*each, in_layer) for each in chosen]
        leaves = [value if value.dtype == dtype else torch.empty_like(value, dtype=dtype) for value, dtype in values]
        cast = [(leaf, value) for leaf, (value, _) in zip(leaves, values, strict=True) if leaf is not value]
        if cast:  # together: on a GPU by one kernel
            torch._foreach_copy_([leaf for leaf, _ in cast], [value for _, value in cast])
        named = zip(chosen, leaves, strict=True)
        return [Leaf(module, key, self.anatomy.name(module, key), leaf.detach().requires_grad_()) for (module, key, _), leaf in named]

    def _value(self, module: nn.Module, key: str, parameter: Tensor, in_layer: bool) -> tuple[Tensor, torch.dtype]:
        """The rounded value of a parameter, and the dtype in which the run has it."""
        value, role = parameter.detach(), self.anatomy.roles[module]
        transposed = type(module).__name__ == "Conv1D" or bool(getattr(module, "is_transposed", False))
        quantization = self.settings.weights or self.rounding.weights
        value = value if self.rounding.before is None else value.to(self.rounding.before).to(value.dtype)
        if quantization is not None and in_layer and role == "map" and value.dim() > 1 and not key.endswith("bias"):
            value = fake_quantized(value.mT, quantization).mT if transposed else fake_quantized(value, quantization)
        name = self.anatomy.name(module, key)
        value = value.to(self._kind(name, self.rounding.dtype, self.rounding.every)).to(torch.float32)
        in_fp32 = _PART_OF_ROLE.get(role) in self.settings.fp32
        return value, torch.float32 if in_fp32 else self._kind(name, self.dtype, self.settings.round == "all")

    def buffers(self) -> list[Leaf]:
        """One leaf per buffer that has another dtype than in the model."""
        if self.dtype == torch.float32:
            return []
        loaded, found = self.anatomy.loaded(self.dtype), []
        for path, module in self.anatomy.model.named_modules():
            if not module._buffers:
                continue
            roles = {self.anatomy.roles.get(each) for each in (module, *module.children())}
            in_fp32 = "router" in roles and "router" in self.settings.fp32  # a router's corrections may be its parent's
            for key, value in module.named_buffers(recurse=False):
                name = f"{path}.{key}"
                buffer = loaded.computed[name] if name in loaded.computed else value.to(loaded.dtypes[name])
                if buffer.dtype != value.dtype and not in_fp32:
                    found.append(Leaf(module, key, name, buffer.to(value.device)))
        return found

    def _kind(self, name: str, dtype: torch.dtype, every: bool) -> torch.dtype:
        """The dtype of a parameter in a model in ``dtype``."""
        return dtype if every or dtype == torch.float32 else self.anatomy.loaded(dtype).dtypes[name]


@contextmanager
def in_place(leaves: Iterable[Leaf]) -> Iterator[None]:
    """Within the context, the modules compute with the leaves instead of their parameters and buffers."""
    replaced: list[tuple[dict[str, Any], str, Tensor | None]] = []
    try:
        for leaf in leaves:
            tensors: dict[str, Any] = leaf.module._buffers if leaf.key in leaf.module._buffers else leaf.module._parameters
            replaced.append((tensors, leaf.key, tensors[leaf.key]))
            tensors[leaf.key] = leaf.tensor
        yield
    finally:
        for tensors, key, tensor in reversed(replaced):
            tensors[key] = tensor
