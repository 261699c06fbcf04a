"""Fake quantization of weights: quantized and dequantized, in fp32, by torchao where it has the format."""

from importlib.util import find_spec
from typing import Any, cast

import torch
from torch import Tensor, nn

from analyzers.core.errors import InvalidRequest
from analyzers.precision.variants import Quantization

_MX_BLOCK = 32
_TINY = torch.finfo(torch.float32).tiny


def check_quantization(name: str, weights: Quantization) -> None:
    """Raise InvalidRequest where torchao is not installed."""
    if find_spec("torchao") is None:
        raise InvalidRequest(
            f"Variant {name} quantizes its weights ({weights}) with torchao, which is not installed: pip install torchao, or leave it out."
        )


def fake_quantized(weight: Tensor, weights: Quantization) -> Tensor:
    """A weight (outputs, inputs) quantized and dequantized, in fp32; experts (experts, outputs, inputs) one matrix at a time.

    int8 and fp8 (E4M3) have one scale per row, fp8_tensor one per matrix, mxfp4 a power of two per 32.
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
