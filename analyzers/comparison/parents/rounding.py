"""Rounds values to the dtypes in which checkpoints are stored, and tests whether stored values are a step function of others."""

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from analyzers.numerics.formats import BF16, FP16, FP32

Floats = NDArray[np.float64]

# Formats to which rounding is implemented.
FORMATS = {"BF16": BF16, "F16": FP16, "F32": FP32}
_TYPES = {"BF16": ml_dtypes.bfloat16, "F16": np.float16, "F32": np.float32}
# Shares of neighbouring pairs: the most that a step function may invert or split, and the least that it merges.
_INVERTED, _MERGED = 0.005, 0.02
STEPPED = 16  # the fewest values that share a scale


def rounded(values: Floats, dtype: str) -> Floats:
    """Round ``values`` to nearest even, to fp32 first, like storing the result of fp32 arithmetic."""
    with np.errstate(over="ignore"):
        narrow: Floats = values.astype(np.float32).astype(_TYPES[dtype]).astype(np.float64)
    return narrow


def narrowest(parts: list[Floats], dtype: str) -> str:
    """Return ``dtype``, or the dtype from which all values were upcast to it."""
    upcast = (narrow for narrow in ("BF16", "F16") if all((rounded(each, narrow) == each).all() for each in parts))
    return next(upcast, dtype) if dtype == "F32" else dtype


def rounding_error(values: Floats, dtype: str) -> float:
    """Return the sum of ulp(x)^2 / 12, the expected squared error of rounding to ``dtype``; 0 if rounding is not implemented."""
    return float(np.square(FORMATS[dtype].ulp(values[values != 0])).sum()) / 12 if dtype in FORMATS else 0.0


def steps_of(x: Floats, p: Floats, dtype: str) -> tuple[float, float] | None:
    """Return the shares of neighbours in the order of P that X inverts or tells apart where P does not, and that it merges; None without.

    Within runs of `STEPPED` values, per pair of neighbours that differ in P.

    p: cast to ``dtype`` first, that of X.
    """
    size = min(x.size, p.size) // STEPPED * STEPPED
    if not size:
        return None
    x, p = x[:size].reshape(-1, STEPPED), (rounded(p[:size], dtype) if dtype in FORMATS else p[:size]).reshape(-1, STEPPED)
    order = np.argsort(p, axis=1, kind="stable")
    x, p = np.take_along_axis(x, order, 1), np.take_along_axis(p, order, 1)
    rising, step = np.diff(p, axis=1) > 0, np.diff(x, axis=1)
    pairs = max(1, int(rising.sum()))
    no_function = np.where(rising, step < 0, step != 0)
    return float(no_function.sum()) / pairs, float((rising & (step == 0)).sum()) / pairs


def is_step_function(steps: tuple[float, float] | None) -> bool:
    """Return whether X is a step function of P, like a quantized copy: by the shares of neighbours inverted and merged."""
    return steps is not None and steps[0] <= _INVERTED and steps[1] >= _MERGED
