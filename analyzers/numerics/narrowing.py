"""Stores fp32 values in narrower formats without loss: finds the formats that hold the values, and converts."""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from analyzers.numerics.conversions import fp32_of

Narrow = Literal["BF16", "F16"]
NARROW_DTYPES: tuple[Narrow, ...] = ("BF16", "F16")
_WORD = "<u2"


def narrowed(codes: NDArray[np.uint32], to: Narrow) -> NDArray[np.uint16]:
    """Return the (n,) patterns of fp32 values in ``to``: truncated to BF16, rounded to F16.

    codes: (n,) contiguous fp32 patterns. The values are unchanged if `narrowed_exactly` does not return None.
    """
    if to == "F16":
        with np.errstate(all="ignore"):
            return codes.view(np.float32).astype(np.float16).view(np.uint16)
    return np.ascontiguousarray(codes.view(_WORD)[1::2])


def rounded(codes: NDArray[Any], dtype: str, to: Narrow | Literal["F32"]) -> NDArray[Any]:
    """Return the (n,) patterns in ``to`` of values of any float dtype, rounded to nearest even, as torch converts them."""
    patterns = fp32_of(codes, dtype)
    if to == "F32":
        return patterns
    if to == "F16":
        return narrowed(patterns, to)
    nearest = ((patterns + np.uint32(0x7FFF) + ((patterns >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)
    return np.where(np.isnan(patterns.view(np.float32)), np.uint16(0x7FC0), nearest)


def narrowed_exactly(codes: NDArray[np.uint32], to: Narrow) -> NDArray[np.uint16] | None:
    """Narrow like `narrowed` if every pattern can be restored bit for bit, else return None.

    Bits include signs of zeros, infinities and NaNs.
    """
    if to == "BF16":
        return None if np.bitwise_or.reduce(codes) & 0xFFFF else narrowed(codes, to)
    found = narrowed(codes, to)
    with np.errstate(all="ignore"):
        restored = found.view(np.float16).astype(np.float32).view(np.uint32)
    return found if np.array_equal(restored, codes) else None
