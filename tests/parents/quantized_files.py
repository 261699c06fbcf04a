"""Writes quantized copies of models in the layouts of their programs, by their published formulas, without the code under test."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import save_file

from tests.parents.checkpoints import BF16, F16, F32, Tensors

Config = dict[str, Any]
Quantizer = Callable[[str, torch.Tensor], Tensors]


def is_quantized(name: str, tensor: torch.Tensor) -> bool:
    """Matrices of layers; the embedding stays as it is, as in most files."""
    return tensor.dim() > 1 and ".layers." in name


def write(folder: Path, tensors: Tensors, quantize: Quantizer, config: Config, kept: Callable[[str], bool] = lambda name: False) -> str:
    """Write a copy in a folder, and return its path. kept: names that stay as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    stored: Tensors = {}
    for name, tensor in tensors.items():
        stored |= quantize(name, tensor.to(F32)) if is_quantized(name, tensor) and not kept(name) else {name: tensor}
    save_file({name: tensor.contiguous() for name, tensor in stored.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"} | config))
    return str(folder)


def fp8(folder: Path, tensors: Tensors, **options: Any) -> str:
    """Blocks of 64 x 64 in E4M3."""

    def quantize(name: str, x: torch.Tensor) -> Tensors:
        blocks = x.reshape(x.shape[0] // 64, 64, x.shape[1] // 64, 64)
        scale = blocks.abs().amax(dim=(1, 3), keepdim=True) / 448
        codes = (blocks / scale).reshape(x.shape).to(torch.float8_e4m3fn)
        return {name: codes, f"{name}_scale_inv": scale[:, 0, :, 0]}

    return write(folder, tensors, quantize, {"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 64]}}, **options)


def nvfp4(folder: Path, tensors: Tensors, **options: Any) -> str:
    """Groups of 16 E2M1 codes with scales in E4M3, as compressed-tensors stores them."""
    levels = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])

    def quantize(name: str, x: torch.Tensor) -> Tensors:
        groups = x.reshape(x.shape[0], -1, 16)
        whole = 448 * 6 / x.abs().max()
        scale = (groups.abs().amax(dim=2) / 6 * whole).to(torch.float8_e4m3fn)
        scaled = groups / (scale.to(F32) / whole).unsqueeze(2)
        codes = (scaled.abs().unsqueeze(-1) - levels).abs().argmin(-1) + 8 * (scaled < 0)
        return {f"{name}_packed": _pairs(codes.reshape(x.shape)), f"{name}_scale": scale, f"{name}_global_scale": whole.reshape(1)}

    settings = {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}
    return write(folder, tensors, quantize, {"quantization_config": settings}, **options)


def mlx(folder: Path, tensors: Tensors, bits: int = 4, group: int = 64, **options: Any) -> str:
    """Integers with a scale and a bias in bf16 for each group: codes come from scales in fp32, as MLX computes them."""

    def quantize(name: str, x: torch.Tensor) -> Tensors:
        codes, scale, low = _affine(x, bits, group)
        name = name.removesuffix(".weight")
        return {f"{name}.weight": _words(codes, bits).view(torch.uint32), f"{name}.scales": scale.to(BF16), f"{name}.biases": low.to(BF16)}

    return write(folder, tensors, quantize, {"quantization": {"group_size": group, "bits": bits}}, **options)


def gptq(folder: Path, tensors: Tensors, bits: int = 4, group: int = 64, calibrated: bool = True, **options: Any) -> str:
    """Columns in order of their number, errors moved to the columns that follow (Frantar et al., 2022), unless not ``calibrated``."""

    def quantize(name: str, x: torch.Tensor) -> Tensors:
        generator = torch.Generator().manual_seed(len(name))
        inputs = torch.randn(4 * x.shape[1], x.shape[1], generator=generator) @ _mixing(x.shape[1], generator)
        codes, scale, zero = _compensated(x, inputs, bits, group) if calibrated else _integers(x, bits, group)
        name = name.removesuffix(".weight")
        return {
            f"{name}.qweight": _words(codes, bits, down=True),
            f"{name}.qzeros": _words((zero - 1).T.contiguous(), bits),
            f"{name}.scales": scale.T.contiguous().to(F16),
            f"{name}.g_idx": (torch.arange(x.shape[1]) // group).to(torch.int32),
        }

    settings = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": False, "sym": False}
    return write(folder, tensors, quantize, {"quantization_config": settings}, **options)


# What AWQ scales together in a llama: a norm, or a matrix before, and the matrices behind it.
_SCALED = {
    "input_layernorm": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "post_attention_layernorm": ("mlp.gate_proj", "mlp.up_proj", "mlp.router"),
    "mlp.up_proj": ("mlp.down_proj",),
}


def awq(
    folder: Path, tensors: Tensors, group: int = 64, odd: Tensors | None = None, strength: float = 0.4, known: Tensors | None = None,
    kept: Callable[[str], bool] = lambda name: False,
) -> str:  # fmt: skip
    """Channels scaled between norms, or the matrix before, and matrices (Lin et al., 2023), then rounded to nearest.

    odd: factors of scales of some tensors that nothing undoes, and of their channels; strength: deviation of the factors' logarithms;
    known: filled with the values of the matrices, without the factors.
    """
    scaled = {name: tensor.to(F32) for name, tensor in tensors.items()}
    generator, undo = torch.Generator().manual_seed(5), dict[str, Any]()
    for name in list(scaled):
        start, _, part = name.rpartition("layers.")
        number = part.partition(".")[0]
        if not name.endswith("q_proj.weight"):
            continue
        layer = f"{start}layers.{number}."
        for before, after in _SCALED.items():
            behind = [matrix for matrix in after if f"{layer}{matrix}.weight" in scaled]
            if not behind or f"{layer}{before}.weight" not in scaled:
                continue
            factor = torch.exp(strength * torch.randn(scaled[f"{layer}{behind[0]}.weight"].shape[1], generator=generator))
            for matrix in behind:
                scaled[f"{layer}{matrix}.weight"] = scaled[f"{layer}{matrix}.weight"] * factor
                undo[f"{layer}{matrix}.weight"] = undo.get(f"{layer}{matrix}.weight", 1.0) / factor
            first = scaled[f"{layer}{before}.weight"]
            scaled[f"{layer}{before}.weight"] = first / (factor if first.dim() == 1 else factor.unsqueeze(1))
            undo[f"{layer}{before}.weight"] = undo.get(f"{layer}{before}.weight", 1.0) * factor.reshape(-1, *[1] * (first.dim() - 1))
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])

    def quantize(name: str, x: torch.Tensor) -> Tensors:
        codes, scale, zero = _integers(x * (odd or {}).get(name, 1.0), 4, group)
        if known is not None:
            steps = scale.to(F16).to(F32).repeat_interleave(group, 1)
            known[name] = (codes - zero.repeat_interleave(group, 1)) * steps * undo.get(name, 1.0)
        name = name.removesuffix(".weight")
        packed = [_words(each.T.reshape(each.shape[1], -1, 8)[:, :, order].reshape(each.shape[1], -1), 4) for each in (codes, zero)]
        return {f"{name}.qweight": packed[0], f"{name}.qzeros": packed[1], f"{name}.scales": scale.T.contiguous().to(F16)}

    settings = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}
    back = {
        name: tensor if is_quantized(name, tensor) and not kept(name) else tensor.to(tensors[name].dtype) for name, tensor in scaled.items()
    }
    return write(folder, back, quantize, {"quantization_config": settings}, kept)


def ggml(folder: Path, tensors: Tensors, kind: str = "Q8_0", kept: Callable[[str], bool] = lambda name: False) -> str:
    """A GGUF file, quantized by the gguf library, or to IQ4_NL."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "model.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_block_count(sum(name.endswith("q_proj.weight") for name in tensors))
    names, code = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 64), gguf.GGMLQuantizationType[kind]
    for name, tensor in tensors.items():
        target, data = f"{names.get_name(name.removesuffix('.weight'))}.weight", tensor.to(F32).numpy()
        if is_quantized(name, tensor) and not kept(name):
            writer.add_tensor(target, _iq4_nl(data) if kind == "IQ4_NL" else gguf.quants.quantize(data, code), raw_dtype=code)
        else:
            writer.add_tensor(target, np.ascontiguousarray(data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(file)


def _iq4_nl(data: np.ndarray[Any, np.dtype[np.float32]]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Quantize to the 16 values of ggml's kvalues_iq4nl, with a scale in fp16 for each 32."""
    levels = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113])
    blocks = data.reshape(-1, 32)
    scale = (np.abs(blocks).max(axis=1, keepdims=True) / 113).astype(np.float16)
    codes = np.abs(blocks[:, :, None] / np.maximum(scale.astype(np.float32), 1e-8)[:, :, None] - levels).argmin(axis=2).astype(np.uint8)
    packed = np.concatenate([scale.view(np.uint8), codes[:, :16] | codes[:, 16:] << 4], axis=1)
    return packed.reshape(*data.shape[:-1], -1)


def _affine(x: torch.Tensor, bits: int, group: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return codes (rows, columns), scales and lowest values (rows, groups)."""
    groups = x.reshape(x.shape[0], -1, group)
    low, high = groups.amin(dim=2, keepdim=True), groups.amax(dim=2, keepdim=True)
    scale = ((high - low) / (2**bits - 1)).clamp(min=1e-9)
    codes = torch.round((groups - low) / scale).clamp(0, 2**bits - 1)
    return codes.reshape(x.shape).to(torch.int64), scale[:, :, 0], low[:, :, 0]


def _integers(x: torch.Tensor, bits: int, group: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return codes (rows, columns), scales rounded to fp16, and zero points (rows, groups)."""
    _, scale, low = _affine(x, bits, group)
    scale = scale.to(F16).to(F32)
    zero = torch.round(-low / scale).clamp(1, 2**bits - 1)
    spread, zeros = scale.repeat_interleave(group, 1), zero.repeat_interleave(group, 1)
    codes = (torch.round(x / spread) + zeros).clamp(0, 2**bits - 1)
    return codes.to(torch.int64), scale, zero.to(torch.int64)


def _mixing(width: int, generator: torch.Generator) -> torch.Tensor:
    """Mix channels, of different sizes, as the inputs of layers are."""
    return torch.eye(width) * torch.exp(0.5 * torch.randn(width, generator=generator)) + 0.05 * torch.randn(
        width, width, generator=generator
    )


def _compensated(x: torch.Tensor, inputs: torch.Tensor, bits: int, group: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Quantize one column after the other, with the error of each moved to those that follow."""
    left, codes = x.to(torch.float64).clone(), torch.zeros(x.shape, dtype=torch.int64)
    second = (inputs.T @ inputs).to(torch.float64)
    second += 0.01 * second.diagonal().mean() * torch.eye(len(second))
    inverse = torch.linalg.cholesky(torch.linalg.inv(second), upper=True)
    scales, zeros = [], []
    for column in range(x.shape[1]):
        if column % group == 0:
            _, scale, zero = _integers(left[:, column : column + group].to(F32), bits, group)
            scales.append(scale)
            zeros.append(zero)
        scale, zero = scales[-1][:, 0].to(torch.float64), zeros[-1][:, 0].to(torch.float64)
        codes[:, column] = (torch.round(left[:, column] / scale) + zero).clamp(0, 2**bits - 1).to(torch.int64)
        error = (left[:, column] - (codes[:, column] - zero) * scale) / inverse[column, column]
        left[:, column + 1 :] -= error.unsqueeze(1) * inverse[column, column + 1 :]
    return codes, torch.cat(scales, dim=1), torch.cat(zeros, dim=1)


def _words(codes: torch.Tensor, bits: int, down: bool = False) -> torch.Tensor:
    """Pack codes (rows, columns) into words of 32 bits along each row; down: each row becomes a column."""
    each = 32 // bits
    shifts = torch.arange(each) * bits
    words = (codes.reshape(codes.shape[0], -1, each) << shifts).sum(dim=2)
    packed = torch.from_numpy(words.numpy().astype(np.uint32).view(np.int32).copy())
    return packed.T.contiguous() if down else packed


def _pairs(codes: torch.Tensor) -> torch.Tensor:
    """Pack two codes of 4 bits into a byte, the first one low."""
    return (codes[:, ::2] + 16 * codes[:, 1::2]).to(torch.uint8)
