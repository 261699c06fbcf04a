"""The layouts of quantized weights: which tensors belong together, and how their values are computed.

Names, dtypes and shapes choose the layout; ``quantization_config`` decides only what they leave open. Scales named ``_inv`` are multiplied
too: the name only says how they were computed.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import NamedTuple

from analyzers.checkpoints.quantization.bitsandbytes import four_bits
from analyzers.checkpoints.quantization.candidate import FLOATS, Candidate, Fit
from analyzers.checkpoints.quantization.float_layouts import fp4, fp8, mlx_floats, mxfp4_blocks
from analyzers.checkpoints.quantization.integer_layouts import (
    awq,
    bitsandbytes_int8,
    compressed_tensors,
    gptq,
    int8,
    mlx,
    torchao_int4,
)
from analyzers.checkpoints.tensor import Tensor

Parts = dict[str, tuple[str, ...]]

BYTES = frozenset({"U8", "I8"})
_FP8 = frozenset({"F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"})
_F4, _I32, _U32, _I8 = BYTES | {"F4"}, frozenset({"I32"}), frozenset({"U32"}), frozenset({"I8"})


class Layout(NamedTuple):
    """A row of the table.

    codes: the ending of the name of the codes; weight: what replaces it in the name of the weight; dtypes: of the codes; parts: by their
    field the endings that replace that of the codes, the usual one first; fit: computes the layout, or None if shapes or dtypes do not fit;
    ambiguous: whether bytes of these names may also be something else, which is not a fault. Parts "beside" say nothing about values.
    """

    name: str
    codes: str
    weight: str
    dtypes: frozenset[str]
    parts: Parts
    fit: Callable[[Candidate], Fit | None]
    ambiguous: bool = False

    def named_parts(self, name: str, tensors: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
        """Yield the tensors that belong to the codes ``name``, by field: for each scale that it may have, or once without any."""
        start = name.removesuffix(self.codes)
        named = ((field, start + ending) for field, endings in self.parts.items() for ending in reversed(endings))
        parts = {field: tensors[each] for field, each in named if each in tensors}
        scales = [tensors[start + ending] for ending in self.parts["scale"] if start + ending in tensors]
        yield from (parts | {"scale": scale} for scale in scales) if scales else [parts]


_SCALES: Parts = {"scale": ("_scale_inv", "_scale")}
_BESIDE: Parts = {"scale": ("scale", "scale_weight", "qscale_weight")}
_GLOBAL: Parts = {"factor": ("_scale_2",), "divisor": ("_global_scale",)}
_GROUPS: Parts = {"scale": ("scales",), "zero": ("qzeros",), "index": ("g_idx",)}
_NESTED: Parts = {
    "scale": (".absmax",), "nested": (".nested_absmax",), "values": (".nested_quant_map",), "beside": (".quant_map",),
    "nf4": (".quant_state.bitsandbytes__nf4",), "fp4": (".quant_state.bitsandbytes__fp4",),
}  # fmt: skip

LAYOUTS = (
    Layout("fp8", "", "", _FP8, _SCALES, fp8),
    Layout("fp8", "weight", "weight", _FP8, _BESIDE, fp8),
    Layout("fp8", "_weight_qdata", "weight", _FP8, {"scale": ("_weight_scale",)}, fp8),
    Layout("MXFP4", "_blocks", "", BYTES, {"scale": ("_scales",)}, mxfp4_blocks),
    Layout("MXFP4", ".blocks", "", BYTES, {"scale": (".scales",)}, mxfp4_blocks),
    Layout("fp4", "_packed", "", _F4, _SCALES | _GLOBAL, fp4, True),
    Layout("fp4", "", "", _F4, _SCALES | _GLOBAL, fp4, True),
    Layout("fp4", "weight", "weight", _F4, _BESIDE, fp4, True),
    Layout("GPTQ", "qweight", "weight", _I32, _GROUPS, gptq, True),
    Layout("AWQ", "qweight", "weight", _I32, _GROUPS, awq, True),
    Layout(
        "compressed-tensors", "_packed", "", _I32,
        {"scale": ("_scale",), "zero": ("_zero_point",), "index": ("_g_idx",), "beside": ("_shape",)}, compressed_tensors,
    ),
    Layout("int8", "weight", "weight", BYTES, {"scale": ("weight_scale",), "zero": ("weight_zero_point",)}, int8, True),
    Layout("torchao", "_weight_qdata", "weight", BYTES, {"scale": ("_weight_scale",), "zero": ("_weight_zero_point",)}, torchao_int4, True),
    Layout("torchao", "_weight_qdata", "weight", BYTES, {"scale": ("_weight_scale",), "zero": ("_weight_zero_point",)}, int8),
    Layout("bitsandbytes", "weight", "weight", _I8, {"scale": ("SCB",), "beside": ("weight_format",)}, bitsandbytes_int8),
    Layout("bitsandbytes", "", "", BYTES | FLOATS, _NESTED, four_bits),
    Layout("MLX", "weight", "weight", _U32, {"scale": ("scales",), "bias": ("biases",)}, mlx, True),
    Layout("MLX", "weight", "weight", _U32, {"scale": ("scales",)}, mlx_floats, True),
)  # fmt: skip


@cache
def layouts_of(dtype: str) -> tuple[Layout, ...]:
    """Return the layouts whose codes may have a dtype."""
    return tuple(layout for layout in LAYOUTS if dtype in layout.dtypes)
