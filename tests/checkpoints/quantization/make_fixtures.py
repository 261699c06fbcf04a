"""Writes ``fixtures``: weights as MLX, bitsandbytes and compressed-tensors store them, and the values that these libraries compute.

Run in an environment with mlx, bitsandbytes, compressed-tensors and safetensors: ``python make_fixtures.py``.
"""

# mypy: ignore-errors
import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

FOLDER = Path(__file__).parent / "fixtures"
ROWS, COLUMNS = 4, 128
ROWS_OF_ZEROS = 16  # whose zero points fill words


def weight(seed: int, rows: int = ROWS) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((rows, COLUMNS)).astype(np.float32))


def save(name: str, stored: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], config: dict) -> None:
    folder = FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    save_file({key: value.contiguous() for key, value in stored.items()}, folder / "model.safetensors")
    save_file({key: value.float().contiguous() for key, value in expected.items()}, FOLDER / f"{name}.safetensors")
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")


def mlx() -> None:
    import mlx.core as mx

    def torched(array: mx.array) -> torch.Tensor:
        if array.dtype == mx.bfloat16:
            return torch.from_numpy(np.array(array.astype(mx.float32))).bfloat16()
        return torch.from_numpy(np.array(array))

    stored, expected, modules = {}, {}, {}
    for bits in (2, 3, 4, 5, 6, 8):
        for group in (32, 64, 128):
            name = f"affine_{bits}_{group}"
            dtype = mx.bfloat16 if group == 64 else mx.float32
            codes, scales, biases = mx.quantize(mx.array(weight(bits * group).numpy()).astype(dtype), group_size=group, bits=bits)
            wide = [each.astype(mx.float32) for each in (scales, biases)]
            expected[f"{name}.weight"] = torched(mx.dequantize(codes, *wide, group_size=group, bits=bits))
            stored |= {f"{name}.weight": torched(codes), f"{name}.scales": torched(scales), f"{name}.biases": torched(biases)}
            modules[name] = {"group_size": group, "bits": bits, "mode": "affine"}
    for mode, bits, group in (("mxfp4", 4, 32), ("nvfp4", 4, 16), ("mxfp8", 8, 32)):
        codes, scales = mx.quantize(mx.array(weight(bits + group).numpy()), mode=mode)
        expected[f"{mode}.weight"] = torched(mx.dequantize(codes, scales, mode=mode).astype(mx.float32))
        stored |= {f"{mode}.weight": torched(codes), f"{mode}.scales": torched(scales)}
        modules[mode] = {"group_size": group, "bits": bits, "mode": mode}
    save("mlx", stored, expected, {"quantization": {"group_size": 64, "bits": 4} | modules})


def bitsandbytes() -> None:
    from bitsandbytes import functional

    stored, expected = {}, {}
    for kind in ("nf4", "fp4"):
        for nested in (False, True):
            name = f"{kind}{'_nested' * nested}.weight"
            codes, state = functional.quantize_4bit(
                weight(len(name), 160 if name == "nf4_nested.weight" else ROWS), quant_type=kind, compress_statistics=nested
            )
            stored |= {name: codes} | {f"{name}.{part}": value for part, value in state.as_dict(packed=True).items()}
            expected[name] = functional.dequantize_4bit(codes, state)
    codes, scales, _ = functional.int8_vectorwise_quant(weight(9).half())
    stored |= {"int8.weight": codes, "int8.SCB": scales, "int8.weight_format": torch.tensor(0, dtype=torch.uint8)}
    expected["int8.weight"] = functional.int8_vectorwise_dequant(codes, scales)
    save("bitsandbytes", stored, expected, {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}})


def compressed_tensors() -> None:
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.lifecycle.forward import dequantize
    from compressed_tensors.quantization.utils import calculate_qparams

    def args(**how: object) -> QuantizationArgs:
        return QuantizationArgs(**how)

    kinds = {
        "int4": ("pack-quantized", args(num_bits=4, type="int", strategy="group", group_size=32, symmetric=True)),
        "int4_zeros": ("pack-quantized", args(num_bits=4, type="int", strategy="group", group_size=32, symmetric=False)),
        "int8": ("pack-quantized", args(num_bits=8, type="int", strategy="channel", symmetric=True)),
        "plain_int8": ("int-quantized", args(num_bits=8, type="int", strategy="channel", symmetric=True)),
        "plain_int8_zeros": ("int-quantized", args(num_bits=8, type="int", strategy="channel", symmetric=False)),
        "fp8": ("naive-quantized", args(num_bits=8, type="float", strategy="channel", symmetric=True)),
        "nvfp4": ("nvfp4-pack-quantized", args(num_bits=4, type="float", strategy="tensor_group", group_size=16, symmetric=True)),
        "mxfp4": ("mxfp4-pack-quantized", args(num_bits=4, type="float", strategy="group", group_size=32, symmetric=True)),
    }
    stored, expected, groups = {}, {}, {}
    for seed, (name, (form, how)) in enumerate(kinds.items()):
        values, group = weight(seed, ROWS_OF_ZEROS), how.group_size or COLUMNS
        parts = values.reshape(ROWS_OF_ZEROS, -1, group)
        given = {"global_scale": torch.tensor([448 * 6 / values.abs().max()])} if name == "nvfp4" else {}
        scale, zero = calculate_qparams(parts.amin(-1), parts.amax(-1), how, **given)
        scheme = QuantizationScheme(targets=["Linear"], weights=how)
        if name == "mxfp4":  # a power of two, as the compressor stores it
            scale = torch.exp2(torch.floor(torch.log2(parts.abs().amax(-1) / 4)))
        state = {"weight": values, "weight_scale": scale, "weight_zero_point": zero}
        state |= {f"weight_{part}": value for part, value in given.items()}
        compressor = BaseCompressor.get_value_from_registry(form)
        saved = compressor.compress(state, scheme)
        expected[f"{name}.weight"] = compressor.decompress(saved, scheme)["weight"]
        if name in ("nvfp4", "mxfp4"):  # not in bf16
            codes = unpack_fp4_from_uint8(saved["weight_packed"], ROWS_OF_ZEROS, COLUMNS, dtype=torch.float32)
            scales = saved["weight_scale"].float() if name == "nvfp4" else scale
            expected[f"{name}.weight"] = dequantize(codes, scales, args=how, global_scale=given.get("global_scale"), dtype=torch.float32)
        stored |= {f"{name}.{part}": value for part, value in saved.items()}
        groups[name] = {"targets": [name], "weights": json.loads(how.model_dump_json(exclude_none=True))}
    save("compressed-tensors", stored, expected, {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": groups}})


if __name__ == "__main__":
    mlx()
    bitsandbytes()
    compressed_tensors()
