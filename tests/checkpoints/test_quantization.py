"""How weights are quantized, by their tensors and configuration."""

import pytest

from analyzers.checkpoints.quantization.description import quantization
from analyzers.checkpoints.tensor import Tensor
from analyzers.checkpoints.tensor_names.roles import is_buffer


@pytest.mark.parametrize(
    ("dtypes", "method", "expected"),
    [
        ({"a.weight": "F32", "a.position_ids": "I64"}, "gptq", None),
        ({"a.qweight": "I32", "a.qzeros": "I32", "a.scales": "F16", "a.g_idx": "I32"}, None, "gptq"),
        ({"a.qweight": "I32", "a.qzeros": "I32", "a.scales": "F16"}, None, "awq"),
        ({"a.qweight": "I32", "a.qzeros": "I32", "a.scales": "F16"}, "gptq", "gptq"),
        ({"a.weight": "U8", "a.weight.absmax": "F32", "a.weight.quant_map": "F32"}, "bitsandbytes", "bitsandbytes-4bit"),
        ({"a.weight": "U8", "a.weight.quant_state.bitsandbytes__nf4": "U8"}, None, "bitsandbytes-4bit"),
        ({"a.weight": "I8", "a.SCB": "F32"}, None, "bitsandbytes-8bit"),
        ({"e.gate_up_proj_blocks": "U8", "e.gate_up_proj_scales": "U8"}, "mxfp4", "mxfp4"),
        ({"a.weight": "F8_E4M3", "a.weight_scale_inv": "F32"}, "fp8", "fp8"),
        ({"a.weight": "F8_E4M3"}, None, None),
        ({"a.weight": "F8_E4M3", "a.weight_scale": "F32"}, "compressed-tensors", "compressed-tensors"),
        ({"a.weight": "F8_E4M3", "a.scale": "F8_E8M0"}, None, "fp8"),
        ({"a.weight": "I8", "a.scale": "F8_E8M0"}, None, "mxfp4"),
        ({"a.weight": "U8", "a.weight_scale": "F8_E4M3", "a.weight_scale_2": "F32"}, "modelopt", "nvfp4"),
        ({"a.weight_packed": "U8", "a.weight_scale": "F8_E4M3", "a.weight_global_scale": "F32"}, "compressed-tensors", "nvfp4"),
        ({"a.weight_packed": "I32", "a.weight_scale": "F16", "a.weight_shape": "I64"}, "compressed-tensors", "compressed-tensors"),
        ({"a.W_q": "U8", "a.scale": "F16", "a.zero": "F16"}, None, "hqq"),
        ({"a.codes": "I16", "a.codebooks": "F16", "a.scales": "F16"}, "aqlm", "aqlm"),
        ({"blk.0.attn_q.weight": "Q4_K", "output_norm.weight": "F32"}, None, "gguf"),
        ({"a.weight": "I8"}, "x" * 1000, "integer"),
        ({"a.fc": "I8", "a.norm.weight": "F32"}, None, "integer"),
        ({"a.table": "I64", "a.mask": "U8", "a.weight": "F32"}, None, None),
        ({"a.weight": "I8"}, {"hostile": 1}, "integer"),
        ({"a.weight": "BOOL"}, None, None),
    ],
)
def test_quantization(dtypes: dict[str, str], method: object, expected: str | None) -> None:
    assert quantization(tensors(dtypes), {"quantization_config": {"quant_method": method}}) == expected
    if method is None:
        assert quantization(tensors(dtypes), None) == expected


def tensors(dtypes: dict[str, str]) -> list[Tensor]:
    """Matrices of these names and dtypes."""
    return [Tensor(name, dtype, (8, 8), 0, 0, 64, "other", None, is_buffer(name, (8, 8), dtype)) for name, dtype in dtypes.items()]


def test_compressed_tensors_are_not_always_packed() -> None:
    stored = tensors({"a.weight": "I8", "a.weight_scale": "BF16"})
    assert quantization(stored, {"quantization_config": {"quant_method": "compressed-tensors"}}) == "compressed-tensors"
