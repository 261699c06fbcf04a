"""Layouts whose codes are integers: GPTQ, AWQ, compressed-tensors, int8, torchao and MLX."""

from dataclasses import replace
from functools import cache

import numpy as np

from analyzers.checkpoints.quantization.candidate import FLOATS, Candidate, Fit, group_length, in_blocks
from analyzers.checkpoints.quantization.quantized import Floats, Packing, Quantized, Source
from analyzers.checkpoints.tensor import Tensor

_WORDS = frozenset({"I32", "U32"})
_INDICES = _WORDS | {"I64"}
_BYTES = frozenset({"I8", "U8"})
_AWQ = (0, 4, 1, 5, 2, 6, 3, 7)  # places of eight consecutive columns in a word


def gptq(found: Candidate) -> Fit | None:
    """Fit GPTQ: (in, out), columns packed into words; zero points packed along the rows, stored less one in the first version.

    qweight: (in x bits / 32, out); scales: (groups, out); qzeros: (groups, out x bits / 32); g_idx: (in,), the group of each input.
    """
    codes, scale, zero, index = found.codes, *_of_groups(found), found.part("index", _INDICES, 1)
    if scale is None or zero is None or len(codes.shape) != 2 or codes.shape[1] != scale.shape[1] or codes.strides is not None:
        return None
    (groups, columns), bits = scale.shape, _bits(zero.shape[1], scale.shape[1])
    rows = codes.shape[0] * 32 // bits if bits else 0
    group = next((each.group for each in found.settings.schemes_of(found.module) if each.group), 0)
    group = group if group and -(-rows // group) == groups else group_length(rows, groups)
    if bits not in (2, 3, 4, 8) or not group or (index is None and "index" in found.parts):
        return None
    table = _integers(bits) if found.settings.second else (_integers(bits) + 1) % (1 << bits)
    return _turned(
        found, "GPTQ", (rows, columns), group, scale, _packed(zero, Packing(bits), table, scale.shape), Packing(bits, down=True), index
    )


def awq(found: Candidate) -> Fit | None:
    """Fit AWQ: (in, out), rows packed into words of eight columns in an order of their own, zero points alike."""
    codes, scale, zero = found.codes, *_of_groups(found)
    if scale is None or zero is None or len(codes.shape) != 2 or codes.shape[1] != zero.shape[1] or codes.strides is not None:
        return None
    (groups, columns), rows = scale.shape, codes.shape[0]
    group, packing = group_length(rows, groups), Packing(4, _AWQ)
    if _bits(codes.shape[1], columns) != 4 or not group or "index" in found.parts:
        return None
    return _turned(found, "AWQ", (rows, columns), group, scale, _packed(zero, packing, _integers(4), scale.shape), packing)


def compressed_tensors(found: Candidate) -> Fit | None:
    """Fit compressed-tensors' pack-quantized: rows packed into words, codes from -2^(bits - 1) on; zero points packed along the columns."""
    codes, scale = found.codes, found.part("scale", FLOATS)
    zero, index = found.part("zero", _WORDS), found.part("index", _INDICES, 1)
    if scale is None or len(scale.shape) != len(codes.shape) or scale.shape[:-1] != codes.shape[:-1] or codes.strides is not None:
        return None
    for bits, group, _ in found.settings.schemes_of(found.module):
        columns = codes.shape[-1] * 32 // max(1, bits)
        length = group_length(columns, scale.shape[-1])
        if not 1 < bits <= 8 or columns * bits != codes.shape[-1] * 32 or length != (group or columns):
            continue
        table, shape = _integers(bits) - (1 << (bits - 1)), (*codes.shape[:-1], columns)
        zeros: Source | None = None
        if "zero" in found.parts:
            if zero is None or len(codes.shape) != 2:
                return None
            zeros = _packed(zero, Packing(bits, down=True), table, scale.shape)
        how = {"layout": "compressed-tensors", "dtype": f"INT{bits}", "packing": Packing(bits), "table": table}
        return in_blocks(found, shape, (1, length), scale, zero=zeros, index=index, **how)
    return None


def int8(found: Candidate) -> Fit | None:
    """Fit bytes with scales and zero points of the tensor, of rows, or of groups in a row: compressed-tensors and torchao."""
    codes, scale = found.codes, found.part("scale", FLOATS)
    zero = found.part("zero", _BYTES | _WORDS | FLOATS)
    if scale is None or ("zero" in found.parts and (zero is None or zero.shape != scale.shape)):
        return None
    whole = scale.elements == 1
    if not whole and (len(codes.shape) < 2 or scale.shape not in (codes.shape[:-1], (*codes.shape[:-1], scale.shape[-1]))):
        return None
    group = codes.shape[-1] if whole or scale.shape == codes.shape[:-1] else group_length(codes.shape[-1], scale.shape[-1])
    if not group:
        return None
    return in_blocks(
        found, codes.shape, (1, group), scale, zero=zero, layout="int8", dtype=codes.dtype, packing=Packing(8), table=_bytes(codes)
    )


def torchao_int4(found: Candidate) -> Fit | None:
    """Fit torchao's Int4Tensor: two codes of a row per byte, value = code x scale + zero point, both (in / group, out)."""
    codes, scale, zero = found.codes, found.part("scale", FLOATS, 2), found.part("zero", FLOATS, 2)
    if scale is None or zero is None or scale.shape != zero.shape or len(codes.shape) != 2 or codes.shape[0] != scale.shape[1]:
        return None
    shape, table = (codes.shape[0], codes.shape[1] * 2), ((_integers(4) + 8) % 16) - 8
    group = group_length(shape[1], scale.shape[0])
    if not group or codes.strides is not None:
        return None
    scales, zeros = (replace(each, shape=each.shape[::-1], strides=(1, each.shape[1])) for each in (scale, zero))
    return in_blocks(found, shape, (1, group), scales, bias=zeros, layout="torchao", dtype="INT4", packing=Packing(4), table=table)


def mlx(found: Candidate) -> Fit | None:
    """Fit MLX's affine mode: rows packed into words, value = code x scale + bias."""
    codes, scale, bias = found.codes, found.part("scale", FLOATS), found.part("bias", FLOATS)
    if scale is None or bias is None or scale.shape != bias.shape or scale.shape[:-1] != codes.shape[:-1] or codes.strides is not None:
        return None
    for bits, group, _ in found.settings.schemes_of(found.module):
        columns = codes.shape[-1] * 32 // max(1, bits)
        if bits in (2, 3, 4, 5, 6, 8) and columns * bits == codes.shape[-1] * 32 and group_length(columns, scale.shape[-1]) == group:
            how = {"layout": "MLX", "dtype": f"INT{bits}", "packing": Packing(bits), "table": _integers(bits)}
            return in_blocks(found, (*codes.shape[:-1], columns), (1, group), scale, bias=bias, **how)
    return None


def bitsandbytes_int8(found: Candidate) -> Fit | None:
    """Fit LLM.int8(): a scale per row, value = code x scale / 127."""
    codes, scale = found.codes, found.part("scale", frozenset({"F32"}), 1)
    if scale is None or len(codes.shape) != 2 or scale.shape != codes.shape[:1]:
        return None
    how = {"layout": "bitsandbytes", "dtype": "INT8", "packing": Packing(8), "table": _bytes(codes), "factor": 7.874015718698502e-3}
    return in_blocks(found, codes.shape, (1, codes.shape[1]), scale, **how)


def _of_groups(found: Candidate) -> tuple[Tensor | None, Tensor | None]:
    """Return scales (groups, columns) and packed zero points (groups, words)."""
    scale, zero = found.part("scale", FLOATS, 2), found.part("zero", _WORDS, 2)
    return (scale, zero) if scale is not None and zero is not None and scale.shape[0] == zero.shape[0] else (None, None)


def _bits(words: int, codes: int) -> int:
    """Return the bits of each of ``codes`` in ``words``; 0 if that is not a whole number."""
    return words * 32 // codes if codes and words * 32 % codes == 0 else 0


def _packed(zero: Tensor, packing: Packing, table: Floats, shape: tuple[int, ...]) -> Quantized:
    """Return packed zero points of ``shape``."""
    return Quantized("", "", zero, (1, shape[0], shape[1]), packing, table)


def _turned(
    found: Candidate, layout: str, shape: tuple[int, int], group: int, scale: Tensor, zero: Quantized, packing: Packing,
    index: Tensor | None = None,
) -> Fit:  # fmt: skip
    """Return a matrix stored (in, out) as (out, in), which is how a linear layer holds it."""
    how = {"layout": layout, "dtype": f"INT{packing.bits}", "packing": packing, "table": _integers(packing.bits)}
    fit = in_blocks(found, shape, (group, 1), scale, zero=zero, index=index, acted=found.settings.acted, **how)
    return fit._replace(shape=shape[::-1], strides=(1, shape[1]))


@cache
def _integers(bits: int) -> Floats:
    return np.arange(1 << bits, dtype=np.float32)


def _bytes(codes: Tensor) -> Floats:
    """Return the value of each byte."""
    every = np.arange(256, dtype=np.uint8)
    return (every.view(np.int8) if codes.dtype == "I8" else every).astype(np.float32)
