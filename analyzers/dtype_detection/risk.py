"""Whether the weights survive a cast to fp16."""

from analyzers.dtype_detection.report import Counts, Extremes, Fp16Risk, RiskLevel

# Losing one weight in ten thousand to zero, or one in a hundred to reduced precision, is worth a word.
_UNDERFLOW_SHARE = 1e-4
_SUBNORMAL_SHARE = 1e-2


def fp16_risk(counts: Counts, extremes: Extremes, nonzero: int, quick: bool) -> Fp16Risk:
    """Judge the counts among ``nonzero`` finite nonzero values (those read, in quick mode).

    overflow: some weight becomes infinite. caution: enough become zero or lose precision. fits: neither. Weights that
    fit say nothing about activations.
    """
    if nonzero == 0 or extremes.abs_max is None:
        return Fp16Risk(
            level="unknown",
            reasons=(
                f"There is no finite nonzero weight to judge: {counts.zero:,} are zero, {counts.nan:,} NaN and {counts.inf:,} infinite.",
            ),
        )
    seen = " among the values read" if quick else ""
    reasons = []
    level: RiskLevel = "fits"
    if counts.fp16_overflow:
        level = "overflow"
        reasons.append(
            f"{counts.fp16_overflow:,} weights{seen} become infinite in fp16 (largest {extremes.abs_max:.4g}, limit 65504): "
            "keep bf16 or fp32, or rescale them first."
        )
    else:
        reasons.append(f"The largest weight{seen} is {extremes.abs_max:.3g}; fp16 reaches 65504.")
    if counts.fp16_underflow:
        share = counts.fp16_underflow / nonzero
        if share > _UNDERFLOW_SHARE and level == "fits":
            level = "caution"
        reasons.append(f"{100 * share:.2g} % of the nonzero weights become zero in fp16 ({counts.fp16_underflow:,} at or below 2^-25).")
    if counts.fp16_subnormal:
        share = counts.fp16_subnormal / nonzero
        if share > _SUBNORMAL_SHARE and level == "fits":
            level = "caution"
        reasons.append(f"{100 * share:.2g} % become subnormal and lose precision (below 2^-14).")
    if counts.nan or counts.inf:
        reasons.append(f"{counts.nan:,} weights are NaN and {counts.inf:,} infinite already.")
    reasons.append("Weights that fit say nothing about activations.")
    return Fp16Risk(level=level, reasons=tuple(reasons))
