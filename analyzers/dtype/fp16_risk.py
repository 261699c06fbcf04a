"""Judges the risk of a cast of the weights to fp16."""

from analyzers.dtype.collect import Chosen
from analyzers.dtype.report import Counts, Fp16Risk, Risk, RiskLevel

# One weight in ten thousand lost to zero, or one in a hundred rounded among the subnormals, is worth mentioning.
_UNDERFLOW_SHARE = 1e-4
_INEXACT_SHARE = 1e-2


def fp16_risk(counts: Counts, nonzero: int, undecoded: float) -> Fp16Risk:
    """Judge the counts among ``nonzero`` finite nonzero values (in quick mode those read).

    undecoded: share of the elements whose values are not decoded. The level is "overflow" if some weight becomes infinite, "broken" if some
    is NaN or infinite already, "caution" if enough become zero or lose digits as subnormals, "fits" otherwise; "unknown" if there is no
    weight to judge or most are not decoded. Weights that fit say nothing about activations.
    """
    found: dict[Risk, int | float] = {
        "undecoded": undecoded,
        "overflow": counts.fp16_overflow,
        "underflow": counts.fp16_underflow,
        "subnormal": counts.fp16_subnormal,
        "inexact": counts.fp16_inexact_subnormal,
        "nan": counts.nan,
        "infinite": counts.inf,
        "nothing": not nonzero,
    }
    level: RiskLevel = "fits"
    if not nonzero:
        level = "unknown"
    elif counts.fp16_overflow:
        level = "overflow"
    elif counts.nan or counts.inf:
        level = "broken"
    elif undecoded > 0.5:
        level = "unknown"
    elif counts.fp16_underflow > _UNDERFLOW_SHARE * nonzero or counts.fp16_inexact_subnormal > _INEXACT_SHARE * nonzero:
        level = "caution"
    return Fp16Risk(level=level, reasons=tuple(code for code, number in found.items() if number))


def undecoded_share(chosen: Chosen) -> float:
    """Return the share of the elements whose values are not decoded."""
    others = sum(t.elements for t in chosen.parameters if not t.has_values)
    return others / max(1, sum(t.elements for t in chosen.parameters))
