"""Converts bit patterns of any float dtype: to float64 values, to fp32 and to narrower formats."""

from functools import cache
from typing import Any, Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from analyzers.numerics.bins import NARROW
from analyzers.numerics.formats import FNUZ

Narrow = Literal["BF16", "F16"]
NARROW_DTYPES: tuple[Narrow, ...] = ("BF16", "F16")

# numpy's types that values are rounded to.
FLOATS = {"F32": np.float32, "BF16": ml_dtypes.bfloat16, "F16": np.float16}
_NAN, _NEGATIVE_ZERO = 0x7FC0, 0x8000


def values_of(codes: NDArray[Any], dtype: str) -> NDArray[np.float64]:
    """Return the (n,) float64 values of patterns."""
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return fp32_of(codes, dtype).view(np.float32).astype(np.float64)


def fp32_of(codes: NDArray[Any], dtype: str) -> NDArray[np.uint32]:
    """Return the (n,) fp32 patterns of values; those of fp64 are rounded to nearest even, those of other dtypes are exact in fp32."""
    if dtype == "F32":
        return codes
    if dtype == "F64":
        with np.errstate(all="ignore"):
            return codes.view(np.float64).astype(np.float32).view(np.uint32)
    if dtype == "BF16":
        return codes.astype(np.uint32) << np.uint32(16)
    patterns: NDArray[np.uint32] = fp32_table(dtype)[codes]
    return patterns


@cache
def fp32_table(dtype: str) -> NDArray[np.uint32]:
    """Return the fp32 pattern of every pattern of a narrow dtype."""
    return (NARROW | FNUZ)[dtype].decode().astype(np.float32).view(np.uint32)


def rounded(codes: NDArray[Any], dtype: str, to: Narrow | Literal["F32"]) -> NDArray[Any]:
    """Return the (n,) patterns in ``to`` of values of any float dtype, rounded to nearest even, as torch converts them."""
    values = fp32_of(codes, dtype).view(np.float32)
    with np.errstate(all="ignore"):
        found = values.astype(FLOATS[to]).view(np.uint32 if to == "F32" else np.uint16)
    return np.where(np.isnan(values), np.uint16(_NAN), found) if to == "BF16" else found


def narrowed_exactly(codes: NDArray[np.uint32], to: Narrow) -> NDArray[np.uint16] | None:
    """Return the (n,) patterns in ``to`` of fp32 patterns, if every one can be restored bit for bit, else None.

    Bits include signs of zeros, infinities and NaNs.
    """
    if to == "BF16":
        return None if np.bitwise_or.reduce(codes) & 0xFFFF else (codes >> np.uint32(16)).astype(np.uint16)
    found = rounded(codes, "F32", to)
    with np.errstate(all="ignore"):
        restored = found.view(np.float16).astype(np.float32).view(np.uint32)
    return found if np.array_equal(restored, codes) else None


def changed(base: NDArray[Any], tuned: NDArray[Any], dtypes: tuple[str, str]) -> NDArray[np.bool_]:
    """Return (n,) whether the bf16 values of pairs, rounded once to nearest even, differ. NaN equals NaN, and 0 equals -0."""
    sides = [rounded(codes, dtype, "BF16") for codes, dtype in zip((base, tuned), dtypes, strict=True)]
    for codes in sides:
        codes[codes == _NEGATIVE_ZERO] = 0
    return np.asarray(sides[0] != sides[1])
