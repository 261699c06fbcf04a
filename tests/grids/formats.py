"""The formats of the trial, each with the function that quantizes and dequantizes as its quantizer does.

The quantizers are torchao's, gguf's and transformers' where these have them; the rest is written from the definitions (`definitions`).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gguf
import numpy as np
import torch
from torchao.prototype.mx_formats.mx_tensor import to_dtype, to_mx
from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale
from torchao.quantization import MappingType, choose_qparams_affine, dequantize_affine, quantize_affine
from torchao.quantization.quantize_.workflows.nf4.nf4_tensor import to_nf4
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from tests.grids import definitions as own

Values = torch.Tensor
Dequantized = Callable[[Values, torch.dtype], Values]
ROW, TENSOR = -1, 0
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


@dataclass(frozen=True)
class Format:
    """A format. kind: of its levels; bits: of a code; group: values that share a scale (`ROW`, `TENSOR`, or their number).

    make: fp32 weights (rows, columns) and the dtype in which the dequantizer computes -> values of that dtype. symmetric: no zero point.
    """

    name: str
    kind: str
    bits: int
    group: int
    make: Dequantized
    symmetric: bool = True

    @property
    def answer(self) -> str:
        """What `dtype` calls it, with its group."""
        names = {"integers": "int{}" if self.symmetric else "int{}_zp", "fp4": "fp4_bnb", "mxfp8": "mxfp8_{}"}
        detail = self.bits if self.kind == "integers" else self.name.rpartition(" ")[2]
        format = f"fp8_{self.name[:4]}" if self.name[:4] in ("e4m3", "e5m2") else "fp8_e4m3" if self.kind == "fp8" else self.kind
        group = {TENSOR: "tensor", ROW: "row"}.get(self.group, str(self.group))
        block = re.search(r"\d+x\d+", self.name)
        return f"{names.get(self.kind, format).format(detail)} {block[0] if block else group}"


def torchao_integers(bits: int, group: int, symmetric: bool) -> Dequantized:
    """Quantize by torchao's affine primitives, IntxWeightOnlyConfig and Int8WeightOnlyConfig are made of them."""
    least, most = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if symmetric else (0, 2**bits - 1)
    codes = torch.int8 if symmetric else torch.uint8
    mapping = MappingType.SYMMETRIC if symmetric else MappingType.ASYMMETRIC

    def make(values: Values, dtype: torch.dtype) -> Values:
        rows, columns = values.shape
        block: Any = (1, group) if group > 0 else (1, columns) if group == ROW else (rows, columns)
        scale, zero = choose_qparams_affine(
            values, mapping, block, codes, least, most, eps=1e-9, scale_dtype=dtype, zero_point_dtype=torch.int32
        )
        quantized = quantize_affine(values, block, scale, zero, codes, least, most)
        whole: Values = dequantize_affine(quantized, block, scale, zero, codes, least, most, output_dtype=dtype)
        return whole

    return make


def _mx(element: Any) -> Dequantized:
    """Quantize by torchao's MX formats, 32 values to a power of two."""

    def make(values: Values, dtype: torch.dtype) -> Values:
        scale, codes = to_mx(values, element, 32)
        whole: Values = to_dtype(codes, scale, element, 32, dtype)
        return whole

    return make


def _gpt_oss(values: Values, dtype: torch.dtype) -> Values:
    """Quantize by torchao's MXFP4, dequantize as transformers does for gpt-oss."""
    scale, codes = to_mx(values, torch.float4_e2m1fn_x2, 32)
    blocks = codes.reshape(1, len(values), -1, 16)
    return convert_moe_packed_tensors(blocks, scale.view(torch.uint8).reshape(1, len(values), -1), dtype=dtype)[0].T.contiguous()


def _nvfp4(two_levels: bool) -> Dequantized:
    def make(values: Values, dtype: torch.dtype) -> Values:
        # with a single level the scales are E4M3 themselves, so such weights are made for values near 1
        whole = per_tensor_amax_to_scale(values.abs().amax()) if two_levels else None
        result: Values = NVFP4Tensor.to_nvfp4(values if two_levels else values * 64, per_tensor_scale=whole).dequantize(dtype)
        return result

    return make


def _gguf(name: str) -> Dequantized:
    """Quantize to a type of GGUF; its dequantizer computes in fp32, and the result is rounded."""
    kind = gguf.GGMLQuantizationType[name]

    def make(values: Values, dtype: torch.dtype) -> Values:
        plain = np.ascontiguousarray(values.numpy())
        return torch.from_numpy(gguf.dequantize(gguf.quantize(plain, kind), kind).reshape(plain.shape)).to(dtype)

    return make


def _fp8_of_transformers(side: int, powers: bool) -> Dequantized:
    """Quantize to square blocks, dequantize as transformers does for quant_method fp8; always in fp32."""

    def make(values: Values, dtype: torch.dtype) -> Values:
        blocks = values.reshape(values.shape[0] // side, side, -1, side)
        scale = blocks.abs().amax((1, 3)) / 448
        if powers:
            scale = scale.log2().ceil().exp2()
        codes = (blocks / scale[:, None, :, None]).to(E4M3).reshape(values.shape)
        dequantize: Any = Fp8Dequantize  # untyped
        whole: Values = dequantize(None)._dequantize_one(codes, scale, output_dtype=dtype)
        return whole

    return make


def _integers(bits: int, group: int, symmetric: bool, **more: Any) -> Dequantized:
    return lambda values, dtype: own.integers(values, dtype, bits, group, symmetric=symmetric, **more)


def _book(levels: tuple[float, ...], double: bool) -> Dequantized:
    return lambda values, dtype: own.code_book(values, dtype, levels, 64, double)


def _torchao_integers() -> list[Format]:
    symmetric = (
        (8, TENSOR), (8, ROW), (8, 32), (7, 64), (6, 256), (5, ROW), (4, TENSOR), (4, ROW), (4, 16), (4, 32), (4, 128), (3, 64), (2, 32),
    )  # fmt: skip
    zeroed = ((8, TENSOR), (8, ROW), (8, 128), (7, 128), (6, 64), (5, 32), (4, ROW), (4, 32), (4, 64), (4, 256), (3, 32), (2, 16))
    words = {TENSOR: "tensor", ROW: "row"}
    return [
        Format(f"torchao int{b} {words.get(g, f'group {g}')}{'' if s else ' zero'}", "integers", b, g, torchao_integers(b, g, s), s)
        for s, shapes in ((True, symmetric), (False, zeroed))
        for b, g in shapes
    ]


FORMATS: tuple[Format, ...] = (
    *_torchao_integers(),
    Format("gptq int4 group 128 zero", "integers", 4, 128, _integers(4, 128, False, scales=torch.float16), False),
    Format("gptq int3 group 128 zero", "integers", 3, 128, _integers(3, 128, False, scales=torch.float16), False),
    Format("gptq int8 group 128", "integers", 8, 128, _integers(8, 128, True, scales=torch.float16)),
    Format("fp32 int4 group 128 zero", "integers", 4, 128, _integers(4, 128, False, scales=torch.bfloat16), False),
    Format("awq int4 group 64 zero", "integers", 4, 64, _integers(4, 64, False, scales=torch.float16), False),
    Format("compressed-tensors int4 group 128", "integers", 4, 128, _integers(4, 128, True, scales=torch.bfloat16)),
    Format("compressed-tensors int4 group 32", "integers", 4, 32, _integers(4, 32, True, scales=torch.bfloat16)),
    Format("compressed-tensors int8 row", "integers", 8, ROW, _integers(8, ROW, True, scales=torch.bfloat16)),
    Format("bitsandbytes int8 row", "integers", 8, ROW, _integers(8, ROW, True, restricted=True, scales=torch.float32)),
    Format("bitnet ternary", "ternary", 2, TENSOR, own.ternary),
    Format("bitsandbytes nf4", "nf4", 4, 64, _book(own.NF4, False)),
    Format("bitsandbytes nf4 double", "nf4", 4, 64, _book(own.NF4, True)),
    Format("bitsandbytes fp4", "fp4", 4, 64, _book(own.FP4, False)),
    Format("bitsandbytes fp4 double", "fp4", 4, 64, _book(own.FP4, True)),
    Format("torchao nf4", "nf4", 4, 64, lambda v, d: to_nf4(v.to(d)).get_original_weight()),
    Format("torchao mxfp4", "mxfp4", 4, 32, _mx(torch.float4_e2m1fn_x2)),
    Format("gpt-oss mxfp4", "mxfp4", 4, 32, _gpt_oss),
    Format("torchao mxfp8 e4m3", "mxfp8", 8, 32, _mx(E4M3)),
    Format("torchao mxfp8 e5m2", "mxfp8", 8, 32, _mx(E5M2)),
    Format("torchao nvfp4", "nvfp4", 4, 16, _nvfp4(True)),
    Format("torchao nvfp4 single", "nvfp4", 4, 16, _nvfp4(False)),
    Format("e4m3 tensor", "fp8", 8, TENSOR, lambda v, d: own.fp8_blocks(v, d, E4M3, 0, 0)),
    Format("e4m3 row", "fp8", 8, ROW, lambda v, d: own.fp8_blocks(v, d, E4M3, 1, 0)),
    Format("e5m2 row", "fp8", 8, ROW, lambda v, d: own.fp8_blocks(v, d, E5M2, 1, 0)),
    Format("transformers fp8 64x64", "fp8", 8, 64, _fp8_of_transformers(64, False)),
    Format("transformers fp8 128x128", "fp8", 8, 128, _fp8_of_transformers(128, False)),
    Format("transformers fp8 128x128 powers", "fp8", 8, 128, _fp8_of_transformers(128, True)),
    *(
        Format(f"gguf {name}", kind, bits, group, _gguf(name))
        for name, kind, bits, group in (
            ("Q4_0", "integers", 4, 32), ("Q5_0", "integers", 5, 32), ("Q8_0", "integers", 8, 32), ("TQ1_0", "ternary", 2, 256),
            ("TQ2_0", "ternary", 2, 256), ("MXFP4", "mxfp4", 4, 32),
        )
    ),
)  # fmt: skip

# (dtype in which the dequantizer computes, dtype in which the result is stored)
STORAGES: dict[str, tuple[torch.dtype, torch.dtype]] = {
    "fp32": (torch.float32, torch.float32),
    "bf16": (torch.float32, torch.bfloat16),
    "fp16": (torch.float32, torch.float16),
    "bf16 computed": (torch.bfloat16, torch.bfloat16),
    "fp16 computed": (torch.float16, torch.float16),
}


def dequantized(form: Format, storage: str, distribution: str, seed: int = 0, rows: int = 256, columns: int = 512) -> Values:
    """Return weights as stored after one format: of a distribution (`definitions.DISTRIBUTIONS`) and a storage (`STORAGES`)."""
    computed, stored = STORAGES[storage]
    return form.make(own.weights(distribution, rows, columns, seed), computed).to(stored).contiguous()
