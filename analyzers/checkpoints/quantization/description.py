"""Detects how weights are quantized, and describes the resulting tensors in words."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from analyzers.checkpoints.quantization.quantized import Quantized
from analyzers.checkpoints.tensor import DTYPE_BITS, Tensor
from analyzers.checkpoints.tensor_names.roles import INTEGER_DTYPES

_NARROW = INTEGER_DTYPES | {dtype for dtype, bits in DTYPE_BITS.items() if bits <= 8}
_METHOD = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
# Methods that the tensors alone cannot tell apart: the configuration decides.
_SHARED = ("gptq", "awq", "integer", "fp8", "low-bit")

# Methods by the last components of their tensors' names; the first one counts that has all of its own.
_LEAVES: tuple[tuple[str, set[str]], ...] = (
    ("gptq", {"qweight", "g_idx", "qzeros"}), ("gptq", {"qweight", "g_idx", "scales"}), ("awq", {"qweight", "qzeros"}),
    ("awq", {"qweight", "scales"}), ("bitsandbytes-4bit", {"absmax", "quant_map"}), ("bitsandbytes-8bit", {"scb"}), ("hqq", {"w_q"}),
    ("aqlm", {"codes", "codebooks"}), ("mlx", {"weight", "scales", "biases"}),
)  # fmt: skip


def quantization(tensors: Sequence[Tensor], config: Mapping[str, Any] | None) -> str | None:
    """Return the quantization method, None for unquantized weights.

    One of "gptq", "awq", "bitsandbytes-4bit", "mxfp4", "nvfp4", "fp8", "gguf", ...

    tensors: as stored, before scales are paired with weights. They decide whether weights are quantized, since a configuration
    often survives a conversion; ``quantization_config.quant_method`` then decides between methods with the same storage.
    """
    found = _by_tensors(tensors)
    method = _settings(config).get("quant_method")
    if found in _SHARED and isinstance(method, str) and _METHOD.fullmatch(method.lower()):
        return method.lower()
    return found


def _by_tensors(tensors: Sequence[Tensor]) -> str | None:
    dtypes = {tensor.dtype for tensor in tensors}
    if any(dtype not in DTYPE_BITS for dtype in dtypes):
        return "gguf"
    leaves = {tensor.name.rpartition(".")[2].lower() for tensor in tensors}
    named = next((method for method, needed in _LEAVES if needed <= leaves), None)
    if named is None and any(leaf.startswith("bitsandbytes__") for leaf in leaves):
        named = "bitsandbytes-4bit"
    if named is not None:
        return named
    if not dtypes & _NARROW:
        return None
    if leaves & {"weight_scale_2", "weight_global_scale"} and dtypes & {"U8", "F4"}:
        return "nvfp4"
    if "weight_packed" in leaves:
        return "compressed-tensors"
    if any(leaf.endswith("blocks") and leaf[: -len("blocks")] + "scales" in leaves for leaf in leaves):
        return "mxfp4"
    weights = {tensor.dtype for tensor in tensors if not tensor.buffer}
    # A power of two per 32 codes: the codes are fp8 if there are fp8 tensors, else fp4.
    if "F8_E8M0" in weights and weights & {"F4", "I8", "U8"}:
        return "mxfp4"
    if any(dtype.startswith("F8_E") for dtype in weights) and any("scale" in leaf for leaf in leaves):
        return "fp8"
    if weights & {"F4", "F6_E2M3", "F6_E3M2"}:
        return "low-bit"
    return "integer" if weights & INTEGER_DTYPES - {"BOOL"} else None


def _settings(config: Mapping[str, Any] | None) -> Mapping[str, Any]:
    settings = (config or {}).get("quantization_config")
    return settings if isinstance(settings, dict) else {}


def storage_note(tensors: Sequence[Tensor]) -> str:
    """Describe tensors of one dtype if the dtype's name does not: scales, scaled codes, integers, blocks of GGUF."""
    parts = []
    scales = sum(t.holds_scales for t in tensors)
    if scales:
        parts.append("scales of other tensors" if scales == len(tensors) else f"{scales:,} of them scales of other tensors")
    decoded = sorted({t.stored.label for t in tensors if isinstance(t.stored, Quantized)})
    if decoded:
        parts.append(f"decoded: {', '.join(decoded[:3])}{' and others' * (len(decoded) > 3)}")
    rest = [t for t in tensors if not t.has_values and not t.holds_scales]
    if rest and not rest[0].bits:
        elements = sum(t.elements for t in rest)
        parts.append(f"quantized blocks of GGUF, {8 * sum(t.nbytes for t in rest) / max(1, elements):.3g} bits per weight")
    elif rest:
        parts.append("no plain floats")
    return "; ".join(parts)
