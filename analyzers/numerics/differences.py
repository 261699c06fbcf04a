"""How far values are from reference values, and how large values are, in one pass: numba on the CPU, like `kernels`."""

from typing import Any

import numpy as np
from numba import float64, int64, uint16, uint32
from numpy.typing import NDArray

from analyzers.numerics.compiler import jit


# Sums may be taken in any order, so that vectors can be added; NaN and infinity arrive in them as ever.
@jit(fastmath={"reassoc", "contract", "nsz"})
def difference_sums(x: NDArray[np.float32], ref: NDArray[np.float32], factor: float) -> tuple[float, float, float, float, float, float]:
    """Sums of ref, d, ref^2, d^2 and ref d, and the largest |d|, over d = factor x - ref in float64. Shapes (n,).

    Where an element is not finite, so is one of the sums.
    """
    sum_ref, sum_d, ref_ref, d_d, ref_d = 0.0, 0.0, 0.0, 0.0, 0.0
    largest = int64(0)  # |d| as a pattern: vectors of integers have a largest element, of floats that may be NaN they have none
    for i in range(x.size):
        r = float64(ref[i])
        d = float64(x[i]) * factor - r
        sum_ref += r
        sum_d += d
        ref_ref += r * r
        d_d += d * d
        ref_d += r * d
        largest = max(largest, np.float64(abs(d)).view(np.int64))
    return sum_ref, sum_d, ref_ref, d_d, ref_d, np.int64(largest).view(np.float64)


def largest_pattern(codes: NDArray[Any]) -> int:
    """The largest of uint16 or uint32 patterns (n,) but for their sign: that of the largest |x|, or of an infinity or NaN."""
    return int(_largest16(codes) if codes.itemsize == 2 else _largest32(codes))


@jit()
def _largest16(codes: NDArray[np.uint16]) -> Any:
    largest = uint16(0)
    for i in range(codes.size):
        largest = max(largest, uint16(codes[i] & uint16(0x7FFF)))
    return largest


@jit()
def _largest32(codes: NDArray[np.uint32]) -> Any:
    largest = uint32(0)
    for i in range(codes.size):
        largest = max(largest, uint32(codes[i] & uint32(0x7FFFFFFF)))
    return largest


def warm() -> None:
    """Compile all of it, or load it from numba's cache."""
    values = np.ones(1, dtype=np.float32)
    difference_sums(values, values, 1.0)
    for width in (2, 4):
        largest_pattern(np.zeros(1, dtype=f"u{width}"))
