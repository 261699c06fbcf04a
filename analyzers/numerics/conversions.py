"""Converts bit patterns of any float dtype to float64 values, to fp32, and to ranks among the values of bf16."""

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzers.numerics.bins import NARROW
from analyzers.numerics.formats import FNUZ

_NAN = 0x7FC00000


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


def bf16_places(codes: NDArray[Any], dtype: str) -> NDArray[np.int64]:
    """Return (n,) ranks of values, rounded once to nearest even, among the values of bf16.

    Zeros are at 0, negative values below, NaN beyond all.
    """
    patterns = fp32_of(codes, dtype)
    magnitude = (patterns & np.uint32(0x7FFFFFFF)).astype(np.int64)
    place = np.where(patterns >> np.uint32(31), -1, 1) * ((magnitude + 0x7FFF + ((magnitude >> 16) & 1)) >> 16)
    return np.where(magnitude > 0x7F800000, _NAN >> 16, place)


def changed(base: NDArray[Any], tuned: NDArray[Any], dtypes: tuple[str, str]) -> NDArray[np.bool_]:
    """Return (n,) whether the bf16 values of pairs differ."""
    mask: NDArray[np.bool_] = bf16_places(base, dtypes[0]) != bf16_places(tuned, dtypes[1])
    return mask
