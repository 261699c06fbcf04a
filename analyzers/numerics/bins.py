"""Defines the bins of a bit histogram.

A 16- or 8-bit float has few enough patterns to count every one. For fp32 the histogram is taken of the high half of the pattern, split into
*planes* by how many of the low bits are zero. Every value in a (plane, high half) bin is then exact in the same formats of at most 10
mantissa bits, so one representative answers for all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from analyzers.numerics.formats import (
    BF16,
    FP8_E4M3,
    FP8_E5M2,
    FP16,
    FP16_GRID_BELOW,
    FP16_OVERFLOW,
    FP16_UNDERFLOW,
    FP32,
    TF32,
    FloatFormat,
)

# safetensors dtype -> its format, for the dtypes whose every pattern gets a bin.
NARROW = {
    "F16": FP16,
    "BF16": BF16,
    "F8_E4M3": FP8_E4M3,
    "F8_E5M2": FP8_E5M2,
}

# Low bits of a representative of each plane of fp32: fewer than 13 low bits zero; exactly 13, 14, 15; 16 or more
_PLANE_LOW_BITS = (0x0001, 0x2000, 0x4000, 0x8000, 0x0000)

CODE_TYPE = {"F32": np.uint32, "F16": np.uint16, "BF16": np.uint16, "F8_E4M3": np.uint8, "F8_E5M2": np.uint8}


@dataclass(frozen=True, slots=True)
class Bins:
    """Properties of each bin of a dtype's histogram; all arrays are flat, (planes * bins,).

    value: a representative (the value itself if the bin holds one pattern); exact: by format name;
    one_bit: the significand is a power of two, so the value is exact in every format and proves nothing;
    exponent: floor(log2 |value|).
    """

    value: NDArray[np.float64]
    exact: dict[str, NDArray[np.bool_]]
    zero: NDArray[np.bool_]
    nan: NDArray[np.bool_]
    inf: NDArray[np.bool_]
    finite_nonzero: NDArray[np.bool_]
    one_bit: NDArray[np.bool_]
    overflow: NDArray[np.bool_]
    underflow: NDArray[np.bool_]
    subnormal: NDArray[np.bool_]
    normal: NDArray[np.bool_]
    low_magnitude: NDArray[np.bool_]
    beyond_fp16: NDArray[np.bool_]
    exponent: NDArray[np.int16]


@dataclass(frozen=True, slots=True)
class BinGroups:
    """Bins grouped by which of several masks they belong to, so that one pass counts the values of each mask.

    group: (bins,) the group of each bin; masks: (groups, masks) 1 where the bins of a group belong to a mask, else 0.
    """

    group: NDArray[np.uint16]
    masks: NDArray[np.int64]

    @classmethod
    def of(cls, masks: Sequence[NDArray[np.bool_]]) -> "BinGroups":
        """Group bins by ``masks``, at most 62, of the bins of one dtype."""
        pattern = sum((mask.astype(np.int64) << bit for bit, mask in enumerate(masks)), np.zeros(1, dtype=np.int64))
        patterns, group = np.unique(pattern, return_inverse=True)
        return cls(group.astype(np.uint16), (patterns[:, None] >> np.arange(len(masks)) & 1))


FORMATS: tuple[FloatFormat, ...] = (FP16, BF16, TF32, FP8_E4M3, FP8_E5M2)


@cache
def bins(dtype: str) -> Bins:
    """Return the bins of ``dtype``'s histogram."""
    stored = NARROW.get(dtype, FP32)
    if dtype in NARROW:
        value = stored.decode()
    else:
        high = np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)
        codes = np.concatenate([high | np.uint32(low) for low in _PLANE_LOW_BITS])
        with np.errstate(invalid="ignore"):  # some patterns are signalling NaNs
            value = codes.view(np.float32).astype(np.float64)
    finite_nonzero = np.isfinite(value) & (value != 0)
    magnitude = np.where(finite_nonzero, np.abs(value), 1.0)
    significand, exponent = np.frexp(magnitude)
    exact = {format_.name: format_.is_exact(value) & finite_nonzero for format_ in FORMATS}
    # Multiples of 2^-24, the spacing of fp16 subnormals.
    with np.errstate(over="ignore", invalid="ignore"):
        steps = value * 2.0**24
        exact["fp16_grid"] = finite_nonzero & (np.rint(steps) == steps)
    return Bins(
        value=value,
        exact=exact,
        zero=value == 0,
        nan=np.isnan(value),
        inf=np.isinf(value),
        finite_nonzero=finite_nonzero,
        one_bit=finite_nonzero & (significand == 0.5),
        overflow=finite_nonzero & (magnitude >= FP16_OVERFLOW),
        underflow=finite_nonzero & (magnitude <= FP16_UNDERFLOW),
        subnormal=finite_nonzero & (magnitude > FP16_UNDERFLOW) & (magnitude < FP16.smallest_normal),
        normal=finite_nonzero & (magnitude >= stored.smallest_normal),
        low_magnitude=finite_nonzero & (magnitude < FP16_GRID_BELOW),
        beyond_fp16=finite_nonzero & (magnitude > 2.0**16),  # fp16's largest, 65504, rounds to 2^16 in bf16
        exponent=(exponent - 1).astype(np.int16),
    )


def bin_count(dtype: str) -> int:
    """Return the number of bins of ``dtype``."""
    return (1 << NARROW[dtype].bits) if dtype in NARROW else len(_PLANE_LOW_BITS) << 16
