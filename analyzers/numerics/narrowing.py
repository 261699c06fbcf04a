"""Stores fp32 and fp64 values in narrower formats without loss: finds the formats that hold the values, and converts."""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from analyzers.numerics.conversions import fp32_of

Narrow = Literal["BF16", "F16", "F32"]
NARROW_DTYPES: tuple[Narrow, ...] = ("BF16", "F16", "F32")
WIDE_DTYPES = ("F32", "F64")

_WORD = "<u2"


def narrowed(codes: NDArray[Any], dtype: str, to: Narrow) -> NDArray[Any]:
    """Return the (n,) patterns of F32 or F64 values in ``to``: truncated to BF16, rounded to F16 and F32.

    codes: (n,) contiguous patterns of ``dtype``. The values are unchanged if `narrowed_exactly` does not return None.
    """
    with np.errstate(all="ignore"):
        single = codes.view(np.float64).astype(np.float32) if dtype == "F64" else codes.view(np.float32)
        if to == "F32":
            return single.view(np.uint32)
        if to == "F16":
            return single.astype(np.float16).view(np.uint16)
    return np.ascontiguousarray(single.view(_WORD)[1::2])


def rounded(codes: NDArray[Any], dtype: str, to: Narrow) -> NDArray[Any]:
    """Return the (n,) patterns in ``to`` of values of any float dtype, rounded to nearest even, as torch converts them."""
    with np.errstate(all="ignore"):
        single = codes.view(np.float64).astype(np.float32) if dtype == "F64" else fp32_of(codes, dtype).view(np.float32)
    if to != "BF16":
        return narrowed(single.view(np.uint32), "F32", to)
    patterns = single.view(np.uint32)
    nearest = ((patterns + np.uint32(0x7FFF) + ((patterns >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)
    return np.where(np.isnan(single), np.uint16(0x7FC0), nearest)


def narrowed_exactly(codes: NDArray[Any], dtype: str, to: Narrow) -> NDArray[Any] | None:
    """Narrow like `narrowed` if every pattern can be restored bit for bit, else return None.

    Bits include signs of zeros, infinities and NaNs.
    """
    if dtype == "F32" and to == "BF16":  # the common case, many times as fast
        return None if np.bitwise_or.reduce(codes) & 0xFFFF else narrowed(codes, dtype, to)
    found = narrowed(codes, dtype, to)
    return found if np.array_equal(_widened(found, to, dtype), codes) else None


def _widened(codes: NDArray[Any], to: Narrow, dtype: str) -> NDArray[Any]:
    """Return the (n,) patterns in ``dtype``, F32 or F64, of values stored in ``to``."""
    with np.errstate(all="ignore"):
        if to == "BF16":
            single = (codes.astype(np.uint32) << np.uint32(16)).view(np.float32)
        else:
            single = codes.view(np.float32 if to == "F32" else np.float16).astype(np.float32)
        return single.astype(np.float64).view(np.uint64) if dtype == "F64" else single.view(np.uint32)
