"""The well-known rule of thumb on magnitudes."""

from typing import NamedTuple


class Thresholds(NamedTuple):
    """Thresholds of the rule: bf16 above ``abs_max``, else fp16 below ``norm_max``."""

    abs_max: float
    norm_max: float


PUBLISHED = Thresholds(1e2, 1e3)


def rule(abs_max: float, norm_max: float, thresholds: Thresholds = PUBLISHED) -> str:
    """Apply the well-known rule: abs max > 1e2 means bf16; else norm max < 1e3 means fp16; else fp32 (stas00/ml-ways)."""
    if abs_max > thresholds.abs_max:
        return "bf16"
    return "fp16" if norm_max < thresholds.norm_max else "fp32"
