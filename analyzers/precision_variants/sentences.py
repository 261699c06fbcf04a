"""Headline and advice of precision variants."""

from typing import TYPE_CHECKING

from analyzers.base import NextStep
from analyzers.formatting import magnitude
from analyzers.precision_variants.variants import Part, Settings

if TYPE_CHECKING:
    from analyzers.precision_variants.report import PrecisionReport

PART_NAMES: dict[Part, str] = {
    "residual": "the residual stream",
    "lm_head": "the head",
    "norms": "the norms",
    "router": "the router",
    "softmax": "attention (except its projections)",
}
# A fix is recommended only if it makes the error at least this many times smaller.
_WORTHWHILE = 1.2


def headline(report: "PrecisionReport") -> str:
    """Write which variant is closest to fp32 and how close, which is farthest, and which variants overflow."""
    errors = {name: variant.summary.logprob_mean for name, variant in report.variants.items()}
    known = {name: error for name, error in errors.items() if error is not None and report.variants[name].overflow is None}
    inexact = {name: error for name, error in known.items() if error}
    over = [name for name, variant in report.variants.items() if variant.overflow or variant.overflow_bw]
    overflows = f" {' and '.join(over)} overflow{'s' if len(over) == 1 else ''}." if over else ""
    if not known:
        return f"No variant gives finite log-probabilities.{overflows}"
    if not inexact:
        return f"{' and '.join(known)} give{'s' if len(known) == 1 else ''} the log-probabilities of fp32 exactly.{overflows}"
    best, worst = min(inexact, key=inexact.__getitem__), max(inexact, key=inexact.__getitem__)
    if best == worst:
        return f"{best} changes log-probabilities by {magnitude(inexact[best])} nats on average.{overflows}"
    return (
        f"{best} is closest to fp32: it changes log-probabilities by {magnitude(inexact[best])} nats on average; "
        f"{worst} changes them most, by {magnitude(inexact[worst])}.{overflows}"
    )


def next_step(report: "PrecisionReport") -> NextStep:
    """Return advice, and the analyzer for the model's passport."""
    return NextStep(_advice(report), "dtype", report.checkpoint.ref)


def _advice(report: "PrecisionReport") -> str:
    """Write in which precision to run the model."""
    fixes = []
    for name, variant in report.variants.items():
        if variant.settings == Settings(dtype="bf16", fp32=variant.settings.fp32) and variant.settings.fp32:
            plain = next((each for each in report.variants.values() if each.settings == Settings(dtype="bf16")), None)
            before, after = plain.summary.mid_max if plain else None, variant.summary.mid_max
            if before and after and before / after >= _WORTHWHILE:
                fixes.append((len(variant.settings.fp32), after, before / after, name))
    if fixes:
        _, _, factor, name = min(fixes)
        parts = " and ".join(PART_NAMES[part] for part in report.variants[name].settings.fp32)
        return f"Cheapest fix for bf16: keep {parts} in fp32, which makes the error of the worst layer {factor:.2g} times smaller."
    over = report.reference.fp16_overflow
    if over is not None:
        return f"Do not run this model in fp16: {over.name} overflows."
    return "Run a variant with the residual stream in fp32 (bf16_fp32_residual), often the cheapest fix."
