"""Describes floating-point formats: their limits, their spacing, and which values they hold exactly."""

from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Special = Literal["ieee", "fn", "fnuz", "none"]


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """A binary format with ``exponent_bits`` and ``mantissa_bits`` (without the implicit leading one).

    special: "ieee" keeps the top exponent for infinities and NaN (IEEE 754); "fn" keeps only the all-ones pattern
    for NaN and has no infinity (OCP FP8 E4M3); "fnuz" has one NaN (the pattern of -0), no infinity, no -0 and a bias
    larger by one; "none" is finite throughout (OCP MX E2M1).
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    special: Special = "ieee"

    @property
    def bits(self) -> int:
        """Width in bits, including the sign (19 for tf32)."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def bias(self) -> int:
        """Exponent bias: subtracted from the stored exponent."""
        return (1 << (self.exponent_bits - 1)) - (0 if self.special == "fnuz" else 1)

    @property
    def largest(self) -> float:
        """Largest finite value."""
        top = (1 << self.exponent_bits) - (2 if self.special == "ieee" else 1) - self.bias
        steps = (2 << self.mantissa_bits) - (2 if self.special == "fn" else 1)
        return float(steps) * 2.0 ** (top - self.mantissa_bits)

    @property
    def smallest_normal(self) -> float:
        """Smallest value with full precision."""
        return 2.0 ** (1 - self.bias)

    @property
    def smallest_subnormal(self) -> float:
        """Smallest positive value."""
        return 2.0 ** (1 - self.bias - self.mantissa_bits)

    def ulp(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the spacing of the format's values at ``x``: 2^(max(floor(log2 |x|), e_min) - mantissa_bits). Same shape; finite x."""
        _, exponent = np.frexp(x)
        floor = np.where(x == 0, 1 - self.bias, exponent - 1)
        spacing: NDArray[np.float64] = np.ldexp(1.0, np.maximum(floor, 1 - self.bias) - self.mantissa_bits)
        return spacing

    def is_exact(self, x: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return whether the format holds ``x`` without rounding: |x| <= largest and x is a multiple of ulp(x).

        Zeros are exact; NaN and infinities are not counted as exact. Same shape as ``x``.
        """
        finite = np.isfinite(x)
        value = np.where(finite, x, 0.0)
        steps = value / self.ulp(value)
        exact: NDArray[np.bool_] = finite & (np.abs(value) <= self.largest) & (steps == np.rint(steps))
        return exact

    def decode(self) -> NDArray[np.float64]:
        """Return the value of every bit pattern, in float64: shape (2^bits,). For formats of at most 16 bits."""
        codes = np.arange(1 << self.bits).astype(np.uint16 if self.bits > 8 else np.uint8)
        with np.errstate(invalid="ignore"):
            values: NDArray[np.float64] = codes.view(_TYPES[self.name]).astype(np.float64)
        values[np.isnan(values)] = np.nan  # signalling ones would warn where they are converted next
        return values


FP32 = FloatFormat("fp32", 8, 23)
TF32 = FloatFormat("tf32", 8, 10)
BF16 = FloatFormat("bf16", 8, 7)
FP16 = FloatFormat("fp16", 5, 10)
FP8_E4M3 = FloatFormat("fp8_e4m3", 4, 3, "fn")
FP8_E5M2 = FloatFormat("fp8_e5m2", 5, 2)
FNUZ = {"F8_E4M3FNUZ": FloatFormat("fp8_e4m3fnuz", 4, 3, "fnuz"), "F8_E5M2FNUZ": FloatFormat("fp8_e5m2fnuz", 5, 2, "fnuz")}
FP4_E2M1 = FloatFormat("fp4_e2m1", 2, 1, "none")

_TYPES: dict[str, Any] = {
    "bf16": ml_dtypes.bfloat16, "fp16": np.float16, "fp8_e4m3": ml_dtypes.float8_e4m3fn, "fp8_e5m2": ml_dtypes.float8_e5m2,
    "fp8_e4m3fnuz": ml_dtypes.float8_e4m3fnuz, "fp8_e5m2fnuz": ml_dtypes.float8_e5m2fnuz, "fp4_e2m1": ml_dtypes.float4_e2m1fn,
}  # fmt: skip


def e8m0_values() -> NDArray[np.float64]:
    """Return (256,) the value of every pattern of E8M0 (OCP MX), the format of scales: 2^(code - 127), and NaN for 255.

    E8M0 is not a `FloatFormat`: it has no sign, no mantissa and no zero.
    """
    values: NDArray[np.float64] = np.arange(256).astype(np.uint8).view(ml_dtypes.float8_e8m0fnu).astype(np.float64)
    return values


# Magnitudes from FP16_OVERFLOW on round to infinity in fp16 (65504 plus half its ulp), those up to FP16_UNDERFLOW to zero (half the
# smallest subnormal).
FP16_OVERFLOW = 65520.0
FP16_UNDERFLOW = 2.0**-25

# Below this magnitude an fp16 value is one of 127 multiples of 2^-24, and bf16 has finer steps than that.
FP16_GRID_BELOW = 2.0**-17
