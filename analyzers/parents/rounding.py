"""Rounds values to the dtypes in which checkpoints are stored."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from analyzers.numerics.formats import BF16, FP16, FP32, FP64

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Formats to which rounding is implemented.
FORMATS = {"BF16": BF16, "F16": FP16, "F32": FP32, "F64": FP64}


def rounds(dtype: str) -> bool:
    """Return whether rounding to ``dtype`` is implemented."""
    return dtype in FORMATS


def rounded(values: Floats, dtype: str) -> Floats:
    """Round finite ``values`` to nearest even, to fp32 first, like storing the result of fp32 arithmetic."""
    if dtype == "F64":
        return values
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float32)
        if dtype == "F16":
            narrow = narrow.astype(np.float16)
    if dtype == "BF16":
        codes = narrow.view(np.uint32)
        codes = (codes + np.uint32(0x7FFF) + ((codes >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
        narrow = codes.view(np.float32)
    return narrow.astype(np.float64)


def narrowest(parts: Iterable[Floats], dtype: str) -> str:
    """Return ``dtype``, or the dtype from which all values were upcast to it."""
    parts = list(parts)
    upcast = (narrow for narrow in ("BF16", "F16") if all((rounded(each, narrow) == each).all() for each in parts))
    return next(upcast, dtype) if dtype in ("F32", "F64") else dtype


def ulps(values: Floats, dtype: str) -> Floats:
    """Return the distance to the next number of larger magnitude in ``dtype``, at finite ``values``."""
    return FORMATS[dtype].ulp(values)


def cells(values: Floats, dtype: str) -> tuple[Floats, Floats]:
    """Return the smallest and the largest number that rounds to each of ``values``, which are finite and stored in ``dtype``.

    The cell extends half an ulp to either side; towards zero a quarter at powers of two, below which numbers are twice as dense.
    """
    outer = ulps(values, dtype) / 2
    inner = ulps(np.nextafter(values, 0.0), dtype) / 2
    down, up = np.where(values > 0, inner, outer), np.where(values < 0, inner, outer)
    return values - down, values + up


def rounding_error(values: Floats, dtype: str) -> float:
    """Return the sum of ulp(x)^2 / 12, the expected squared error of rounding to ``dtype``; 0 if rounding is not implemented."""
    if dtype not in FORMATS:
        return 0.0
    return float(np.square(ulps(values[np.isfinite(values) & (values != 0)], dtype)).sum()) / 12


def equal_as_cast(x: Floats, p: Floats, dtypes: tuple[str, str]) -> list[int]:
    """Count the values of X that equal P cast to X's dtype, or vice versa: directly, through fp16, and through bf16.

    x, p: (n,) finite values stored in ``dtypes``. Returns [0, 0, 0] if fewer than half are equal after rounding to bf16.
    """
    same = x == p
    if same.all():
        return [x.size] * len(THROUGH)
    if dtypes[0] == dtypes[1] == "BF16" or not all(map(rounds, dtypes)):
        return [int(same.sum()), 0, 0]
    if (rounded(x, "BF16") == rounded(p, "BF16")).mean() < 0.5:
        return [0, 0, 0]
    return [max(_cast(x, p, dtypes[0], through), _cast(p, x, dtypes[1], through)) for through in THROUGH]


THROUGH = ("", "F16", "BF16")


def _cast(to: Floats, source: Floats, dtype: str, through: str) -> int:
    return int((rounded(rounded(source, through) if through else source, dtype) == to).sum())
