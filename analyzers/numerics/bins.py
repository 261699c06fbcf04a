"""The bins of a bit histogram.

A 16- or 8-bit float has few enough patterns to count every one. For 32- and 64-bit floats the histogram is taken of
the high half of the fp32 pattern, split into *planes* by how many of the low bits are zero. Every value in a (plane,
high half) bin is then exact in the same formats of at most 10 mantissa bits, so one
representative answers for all of them.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.numerics.formats import (
    BF16,
    FP8_E4M3,
    FP8_E4M3FNUZ,
    FP8_E5M2,
    FP8_E5M2FNUZ,
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
    "F8_E4M3FNUZ": FP8_E4M3FNUZ,
    "F8_E5M2FNUZ": FP8_E5M2FNUZ,
}

# Planes: fewer than 13 low bits of the fp32 pattern zero; exactly 13, 14, 15; 16 or more. F64 adds "not exact in fp32".
PLANES = {"F32": 5, "F64": 6}
_PLANE_LOW_BITS = (0x0001, 0x2000, 0x4000, 0x8000, 0x0000, 0x0001)

CODE_TYPE = {
    "F64": np.uint64, "F32": np.uint32, "F16": np.uint16, "BF16": np.uint16,
    "F8_E4M3": np.uint8, "F8_E5M2": np.uint8, "F8_E4M3FNUZ": np.uint8, "F8_E5M2FNUZ": np.uint8,
}  # fmt: skip


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


FORMATS: tuple[FloatFormat, ...] = (FP16, BF16, TF32, FP8_E4M3, FP8_E5M2)


@cache
def bins(dtype: str) -> Bins:
    """The bins of ``dtype``'s histogram. For wide dtypes one half is computed: every test gives the same for x and -x."""
    if dtype in NARROW:
        return _bins(NARROW[dtype].decode(), NARROW[dtype], None)
    high = np.arange(1 << 15, dtype=np.uint32) << np.uint32(16)
    codes = np.concatenate([high | np.uint32(low) for low in _PLANE_LOW_BITS[: PLANES[dtype]]])
    with np.errstate(invalid="ignore"):  # signalling NaN patterns
        half = _bins(codes.view(np.float32).astype(np.float64), FP32, np.arange(codes.size) >> 15)

    def both(array: NDArray[Any], sign: int = 1) -> NDArray[Any]:
        one = array.reshape(PLANES[dtype], 1 << 15)
        return np.concatenate([one, one if sign == 1 else -one], axis=1).reshape(-1)

    rest = {name: both(getattr(half, name)) for name in Bins.__slots__ if name not in ("value", "exact")}
    return Bins(value=both(half.value, -1), exact={name: both(array) for name, array in half.exact.items()}, **rest)


def _bins(value: NDArray[np.float64], stored: FloatFormat, plane: NDArray[np.int64] | None) -> Bins:
    """The bins with representatives ``value`` of the ``stored`` format, and with planes the ``plane`` of each."""
    every = np.ones(value.size, dtype=np.bool_)
    in_fp32 = every if plane is None else plane < 5
    finite_nonzero = np.isfinite(value) & (value != 0)
    magnitude = np.where(finite_nonzero, np.abs(value), 1.0)
    significand, exponent = np.frexp(magnitude)
    exact = {FP32.name: finite_nonzero & in_fp32}
    for format_ in FORMATS:
        # Computed only for planes with enough zero bits: this runs before the first answer.
        zeros = every if plane is None else in_fp32 & (plane >= (4 if format_.mantissa_bits <= BF16.mantissa_bits else 1))
        exact[format_.name] = np.zeros(value.size, dtype=np.bool_)
        exact[format_.name][zeros] = format_.is_exact(value[zeros])
        exact[format_.name] &= finite_nonzero
    # An fp16 value on the grid of its subnormals: a multiple of 2^-24.
    with np.errstate(over="ignore", invalid="ignore"):
        steps = value * 2.0**24
        exact["fp16_grid"] = finite_nonzero & (np.rint(steps) == steps) & in_fp32
    return Bins(
        value=value,
        exact=exact,
        zero=value == 0,
        nan=np.isnan(value),
        inf=np.isinf(value),
        finite_nonzero=finite_nonzero,
        one_bit=finite_nonzero & (significand == 0.5) & in_fp32,
        overflow=finite_nonzero & (magnitude >= FP16_OVERFLOW),
        underflow=finite_nonzero & (magnitude <= FP16_UNDERFLOW),
        subnormal=finite_nonzero & (magnitude > FP16_UNDERFLOW) & (magnitude < FP16.smallest_normal),
        normal=finite_nonzero & (magnitude >= stored.smallest_normal),
        low_magnitude=finite_nonzero & (magnitude < FP16_GRID_BELOW),
        beyond_fp16=finite_nonzero & (magnitude > 2.0**16),  # fp16's largest, 65504, rounds to 2^16 in bf16
        exponent=(exponent - 1).astype(np.int16),
    )


def bin_count(dtype: str) -> int:
    """Number of bins."""
    return (1 << NARROW[dtype].bits) if dtype in NARROW else PLANES[dtype] << 16


@dataclass(frozen=True, slots=True)
class Classes:
    """Equivalence classes of bins that agree in every mask of `Bins`: a few dozen instead of 65,536 bins or more.

    of: (bins,) the class of each bin; example: (classes,) a bin of each class.
    """

    of: NDArray[np.int64]
    example: NDArray[np.int64]


@cache
def classes(dtype: str) -> Classes:
    """The classes of ``dtype``'s bins."""
    table = bins(dtype)
    names = [name for name in Bins.__slots__ if name not in ("value", "exact", "exponent")]
    masks = [*(getattr(table, name) for name in names), *table.exact.values()]
    # Every test gives the same for x and -x, and half of the bins have the other sign; except in FNUZ formats, whose NaN is -0.
    shape = (-1, 2, 1 << 15) if bin_count(dtype) >= 1 << 16 else (-1, 1, bin_count(dtype))
    signature = np.zeros((bin_count(dtype) // (shape[1] * shape[2]), shape[2]), dtype=np.int32)
    for bit, mask in enumerate(masks):
        signature |= mask.reshape(shape)[:, 0].astype(np.int32) << np.int32(bit)
    found = np.zeros(int(signature.max()) + 1, dtype=np.bool_)
    found[signature] = True
    number = np.cumsum(found) - 1
    of = np.repeat(number[signature][:, None], shape[1], axis=1).reshape(-1)
    example = np.zeros(int(number[-1]) + 1, dtype=np.int64)
    example[of] = np.arange(of.size)
    return Classes(of, example)
