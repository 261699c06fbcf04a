"""Tiny uploads as quantizers lay them out, written from the formats' documentation, without the code under test.

`LAYOUTS` has each layout as a function of a matrix: the tensors that take its place, by the end of their names. `quantized` applies one to
the linear layers of a saved model.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

Values = dict[str, Tensor]
F8, BF16 = torch.float8_e4m3fn, torch.bfloat16
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
_GROUP = 16


def _e2m1(ratio: Tensor) -> Tensor:
    """Return packed codes, the low half of a byte first."""
    codes = (ratio.abs()[..., None] - E2M1).abs().argmin(-1).to(torch.uint8) | ((ratio < 0).to(torch.uint8) << 3)
    return codes[..., 0::2] | codes[..., 1::2] << 4


def _groups(weight: Tensor, size: int = _GROUP) -> Tensor:
    return weight.float().reshape(weight.shape[0], -1, size)


def _packed(codes: Tensor, bits: int = 4) -> Tensor:
    """Pack non-negative codes along the last axis into int32, the first in the lowest bits."""
    per = 32 // bits
    parts = codes.to(torch.int64).reshape(*codes.shape[:-1], -1, per)
    packed = sum(parts[..., i] << (bits * i) for i in range(per))
    assert isinstance(packed, Tensor)
    return torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)


def fp8_block(weight: Tensor) -> Values:
    """DeepSeek, Qwen: codes, and the inverse scale of each block of 128 x 128."""
    scale = weight.float().abs().max().clamp_min(1e-12) / 448
    return {"weight": (weight.float() / scale).to(F8), "weight_scale_inv": scale.reshape(1, 1)}


def fp8_channel(weight: Tensor) -> Values:
    """compressed-tensors: one scale per row, activations with a scale of their own."""
    scale = weight.float().abs().amax(1, keepdim=True).clamp_min(1e-12) / 448
    return {"weight": (weight.float() / scale).to(F8), "weight_scale": scale.to(BF16), "input_scale": torch.tensor(0.02)}


def _nvfp4(weight: Tensor, factor: float = 1e-4) -> tuple[Tensor, Tensor, Tensor]:
    shared = torch.tensor(factor)
    groups = _groups(weight)
    scale = (groups.abs().amax(-1) / 6 / shared).clamp(2**-6, 448).to(F8)
    return _e2m1((groups / (scale.float() * shared)[..., None]).reshape(weight.shape)), scale, shared


def nvfp4_modelopt(weight: Tensor) -> Values:
    """ModelOpt: a global scale to multiply with, and one of activations."""
    codes, scale, shared = _nvfp4(weight)
    return {"weight": codes, "weight_scale": scale, "weight_scale_2": shared, "input_scale": torch.tensor(0.001)}


def nvfp4_compressed(weight: Tensor) -> Values:
    """compressed-tensors: a global scale to divide by."""
    codes, scale, shared = _nvfp4(weight)
    return {"weight_packed": codes, "weight_scale": scale, "weight_global_scale": (1 / shared).reshape(1)}


def pack_quantized(weight: Tensor) -> Values:
    """compressed-tensors: int4, eight codes in an int32."""
    groups = _groups(weight)
    scale = groups.abs().amax(-1).clamp_min(1e-8) / 7.5
    codes = (groups / scale[..., None]).round().clamp(-8, 7).reshape(weight.shape) + 8
    return {"weight_packed": _packed(codes), "weight_scale": scale.to(BF16), "weight_shape": torch.tensor(weight.shape)}


def gptq(weight: Tensor) -> Values:
    """GPTQ: transposed, packed along the inputs, with zero points and the group of each input."""
    groups = _groups(weight)
    scale = groups.abs().amax(-1).clamp_min(1e-8) / 7
    codes = ((groups / scale[..., None]).round().clamp(-8, 7) + 8).reshape(weight.shape)
    zeros = torch.full((scale.shape[1], weight.shape[0]), 7)
    return {"qweight": _packed(codes).T.contiguous(), "qzeros": _packed(zeros), "scales": scale.T.to(torch.float16).contiguous(),
            "g_idx": torch.arange(weight.shape[1], dtype=torch.int32) // _GROUP}  # fmt: skip


def awq(weight: Tensor) -> Values:
    """AWQ: packed along the outputs."""
    stored = gptq(weight)
    codes = torch.randint(0, 16, weight.T.shape, generator=torch.manual_seed(0))
    return {"qweight": _packed(codes), "qzeros": stored["qzeros"], "scales": stored["scales"]}


def nf4(weight: Tensor) -> Values:
    """bitsandbytes: codes in a column, the largest of each 64, the table and the state."""
    flat = weight.float().flatten()
    codes = torch.randint(0, 256, (flat.numel() // 2, 1), generator=torch.manual_seed(0)).to(torch.uint8)
    absmax = flat.reshape(-1, 64).abs().amax(1) if flat.numel() % 64 == 0 else flat.abs().amax().reshape(1)
    settings = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": list(weight.shape)}
    state = torch.frombuffer(bytearray(json.dumps(settings).encode()), dtype=torch.uint8)
    return {"weight": codes, "weight.absmax": absmax, "weight.quant_map": torch.linspace(-1, 1, 16),
            "weight.quant_state.bitsandbytes__nf4": state}  # fmt: skip


def int8_rows(weight: Tensor) -> Values:
    """bitsandbytes LLM.int8: codes, and the largest magnitude of each row."""
    largest = weight.float().abs().amax(1).clamp_min(1e-8)
    return {"weight": (weight.float() / largest[:, None] * 127).round().to(torch.int8), "SCB": largest}


def int8_compressed(weight: Tensor) -> Values:
    """compressed-tensors int8, which torchao's plain tensors resemble."""
    stored = int8_rows(weight)
    return {"weight": stored["weight"], "weight_scale": (stored["SCB"] / 127)[:, None].to(BF16)}


def torchao(weight: Tensor) -> Values:
    """torchao's safetensors: the parts of a tensor's subclass."""
    stored = fp8_channel(weight)
    return {"_weight_qdata": stored["weight"], "_weight_scale": stored["weight_scale"].float()}


def mlx(weight: Tensor) -> Values:
    """MLX affine: codes in uint32, scales and biases of groups."""
    groups = _groups(weight)
    low, high = groups.amin(-1), groups.amax(-1)
    scale = ((high - low) / 15).clamp_min(1e-8)
    codes = ((groups - low[..., None]) / scale[..., None]).round().clamp(0, 15).reshape(weight.shape)
    return {"weight": _packed(codes).view(torch.uint32), "scales": scale.to(BF16), "biases": low.to(BF16)}


Layout = Callable[[Tensor], Values]
_LIST, _CT = ["lm_head"], {"quant_method": "compressed-tensors"}


def _compressed(form: str, **weights: Any) -> dict[str, Any]:
    return {**_CT, "format": form, "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}


LAYOUTS: dict[str, tuple[Layout, dict[str, Any], str]] = {
    "fp8": (fp8_block, {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}, "modules_to_not_convert"),
    "fp8-channel": (fp8_channel, _compressed("float-quantized", num_bits=8, type="float", strategy="channel"), "ignore"),
    "modelopt": (nvfp4_modelopt, {"quant_method": "modelopt", "quant_algo": "NVFP4"}, "ignore"),
    "nvfp4": (nvfp4_compressed, _compressed("nvfp4-pack-quantized", num_bits=4, type="float", group_size=16), "ignore"),
    "pack": (pack_quantized, _compressed("pack-quantized", num_bits=4, type="int", group_size=16, symmetric=True), "ignore"),
    "int8": (int8_compressed, _compressed("int-quantized", num_bits=8, type="int", strategy="channel"), "ignore"),
    "gptq": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": False, "sym": True}, ""),
    "awq": (awq, {"quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemm", "zero_point": True}, "modules_to_not_convert"),
    "nf4": (nf4, {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, "llm_int8_skip_modules"),
    "bnb-int8": (int8_rows, {"quant_method": "bitsandbytes", "load_in_8bit": True}, "llm_int8_skip_modules"),
    "torchao": (torchao, {"quant_method": "torchao", "quant_type": {"default": {"_type": "Float8WeightOnlyConfig"}}}, ""),
    "mlx": (mlx, {"group_size": 16, "bits": 4, "mode": "affine"}, ""),
}
"""Layout, settings of quantization, and the key of the modules that are not quantized ("" if the format has none)."""


def is_linear(name: str, value: Tensor) -> bool:
    """Return whether a saved tensor is the weight of a linear layer that quantizers convert."""
    fits = value.ndim == 2 and name.endswith(".weight") and value.shape[1] % _GROUP == 0 and value.shape[0] % 8 == 0
    return fits and not re.search(r"embed|lm_head|norm|mlp\.gate\.|router|wte|wpe|score", name)


def quantized(values: Values, config: dict[str, Any], layout: str) -> tuple[Values, dict[str, Any]]:
    """Return a model with its linear layers quantized, and its configuration; whatever stays plain is listed."""
    convert, settings, key = LAYOUTS[layout]
    stored: Values = {}
    plain = list(_LIST) if key else []
    for name, value in values.items():
        if is_linear(name, value):
            stem = name.removesuffix("weight")
            parts = convert(value)
            stored |= {stem + end: part.contiguous() for end, part in parts.items()}
        else:
            stored[name] = value
            if value.ndim == 2 and name.endswith(".weight") and "embed" not in name and "lm_head" not in name and key:
                plain.append(name.removesuffix(".weight"))
    settings = {**settings, **({key: plain} if key else {})}
    return stored, {
        **config,
        **({"quantization": settings, "quantization_config": settings} if layout == "mlx" else {"quantization_config": settings}),
    }


def write(folder: Path, values: Values, config: dict[str, Any], **files: Any) -> Path:
    """Write a checkpoint with JSON files next to it, by name without ``.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: value.contiguous().clone() for name, value in values.items()}, folder / "model.safetensors", {"format": "pt"})
    for name, content in {"config": config, **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder
