"""Judges the risk of a cast of the weights to fp16."""

from analyzers import formatting
from analyzers.checkpoints import undecoded_weights
from analyzers.coverage import unseen
from analyzers.dtype_detection.collect import Chosen
from analyzers.dtype_detection.report import Counts, Extremes, Fp16Risk, RiskLevel
from analyzers.formatting import plural

# One weight in ten thousand lost to zero, or one in a hundred at reduced precision, is worth mentioning.
_UNDERFLOW_SHARE = 1e-4
_SUBNORMAL_SHARE = 1e-2


def fp16_risk(
    counts: Counts, extremes: Extremes, nonzero: int, blocks: int | None, most: float | None, unread: str, unread_share: float
) -> Fp16Risk:
    """Judge the counts among ``nonzero`` finite nonzero values (in quick mode those read).

    blocks, most: of a sample, see `unseen`. unread: the weights whose values are not decoded, in words, or an empty text; unread_share:
    their share of all elements. The level is "overflow" if some weight becomes infinite, "broken" if some is NaN or infinite already,
    "caution" if enough become zero or lose precision, "fits" otherwise; "unknown" if there is no weight to judge or most are not decoded.
    Weights that fit say nothing about activations.
    """
    excluded = [f"The check excludes {unread}, whose values are not decoded."] if unread else []
    if nonzero == 0 or extremes.abs_max is None:
        none = f"{counts.zero:,} {'is' if counts.zero == 1 else 'are'} zero, {counts.nan:,} NaN and {counts.inf:,} infinite"
        return Fp16Risk(level="unknown", reasons=(f"No weight is finite and nonzero: {none}.", *excluded))
    seen, of = (" among the values read", "of the nonzero weights read ") if blocks else ("", "")
    reasons = []
    level: RiskLevel = "fits"
    if counts.fp16_overflow:
        level = "overflow"
        reasons.append(
            f"{plural(counts.fp16_overflow, 'weight')}{seen} {'becomes' if counts.fp16_overflow == 1 else 'become'} infinite in fp16 "
            f"(largest {extremes.abs_max:.4g}, limit 65504): keep bf16 or fp32, or rescale first."
        )
    else:
        beyond = f" (beyond: {unseen(blocks, most)})" if blocks else ""
        reasons.append(f"The largest weight{seen} is {extremes.abs_max:.3g}; fp16 reaches 65504{beyond}.")
    if counts.fp16_underflow:
        share = counts.fp16_underflow / nonzero
        if share > _UNDERFLOW_SHARE and level == "fits":
            level = "caution"
        reasons.append(
            f"{formatting.share(share)} {of or 'of the nonzero weights '}become zero in fp16 ({counts.fp16_underflow:,} at or below 2^-25)."
        )
    if counts.fp16_subnormal:
        share = counts.fp16_subnormal / nonzero
        if share > _SUBNORMAL_SHARE and level == "fits":
            level = "caution"
        reasons.append(f"{formatting.share(share)} {of}become subnormal and lose precision (below 2^-14).")
    if counts.nan or counts.inf:
        level = "overflow" if level == "overflow" else "broken"
        reasons.append(f"{plural(counts.nan, 'weight is', 'weights are')} NaN and {counts.inf:,} infinite already.")
    if unread_share > 0.5 and level in ("fits", "caution"):
        level = "unknown"
    if level not in ("overflow", "broken"):
        reasons.append("Weights that fit say nothing about activations.")
    return Fp16Risk(level=level, reasons=(*excluded, *reasons))


def unread(chosen: Chosen) -> tuple[str, float]:
    """Describe the weights whose values are not decoded, empty if there are none; returns the text and their share of the elements."""
    others = sum(t.elements for t in chosen.parameters if not t.has_values)
    return undecoded_weights(chosen.parameters), others / max(1, sum(t.elements for t in chosen.parameters))
