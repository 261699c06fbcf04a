"""The words of precision variants: a template per code, the short answers, and the names of parts and causes."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from analyzers.core.formatting import fixed, magnitude, plural, share
from analyzers.core.notes import Tile
from analyzers.core.words import Words
from analyzers.precision.variants import Part

if TYPE_CHECKING:
    from analyzers.precision.engine.measurements import Engine
    from analyzers.precision.measurements import Fp16, Variant

FRONT = "variants"
PARTS: dict[Part, str] = {
    "residual": "the residual stream",
    "lm_head": "the head",
    "norms": "the norms",
    "router": "the router",
    "softmax": "attention (except its projections)",
}
WORTHWHILE = 1.2
"""Errors are told apart, and a fix is recommended, only if one is at least this many times smaller."""
_OWN = "this model's own bf16 run"

WORDS = Words(
    {
        "fp16_overflows": "Do not run it in fp16: {module} reaches {value:magnitude}, above 65,504, the largest fp16 value.",
        "not_finite": "Do not run it in {variants:list}: values are not finite, first in {where}.",
        "closest": "{closest} is closest to fp32: over {tokens:#token} it changes their probabilities by {least:share} on average, "
        "{farthest} by {most:share}.",
        "alike": "No variant is clearly closest to fp32: over {tokens:#token} {closest} changes their probabilities by {least:share} on "
        "average, {farthest} by {most:share}.",
        "single": "Compared with fp32, {variant} changes the probabilities of {tokens:#token} by {error:share} on average.",
        "exact": "No rounding error in {variants:list}: the same probabilities of {tokens:#token} as in fp32.",
        "engine_within": "Rounding explains the engine: the probabilities of {tokens:#token} differ from fp32 by {percent:share} on "
        f"average, {{ratio:times}} as much as in {_OWN}.",
        "engine_caused": f"More than rounding: the engine differs from fp32 {{ratio:times}} as much as {_OWN}, explained by {{cause}}.",
        "engine_digits": f"The engine differs from fp32 {{ratio:times}} as much as {_OWN}; {{cause}} explain that.",
        "engine_possible": f"More than rounding: the engine differs from fp32 {{ratio:times}} as much as {_OWN}; these tokens do not tell "
        "apart {causes:list}.",
        "engine_unexplained": f"More than rounding: the engine differs from fp32 {{ratio:times}} as much as {_OWN}, and no cause that was "
        "tried explains it.",
        "engine_undecided": f"The engine differs from fp32 {{ratio:times}} as much as {_OWN}; {{tokens:#token}} do not decide whether "
        "rounding explains that.",
        "engine_unmeasured": "This model's own bf16 run equals fp32 on these tokens: there is nothing to measure the engine by.",
        "use_bf16": "Run it in bf16, whose range is that of fp32.",
        "fix": "Cheapest fix for bf16: keep {parts:list} in fp32, which makes the error of the worst layer {factor:times} smaller.",
        "no_fix": "Run it in plain bf16: no part that was kept in fp32 makes the error of the worst layer {worthwhile:times} smaller.",
        "try_residual": "Run bf16_fp32_residual too: the residual stream in fp32 is often the cheapest fix.",
        "try_bf16": "Run plain bf16 too, in which most trainers and engines compute.",
        "write_raw": "Let the engine write log-probabilities before temperature, filters and penalties (vLLM: logprobs_mode "
        "raw_logprobs), or apply these in the trainer too.",
        "write_natural": "Let the engine write natural logarithms.",
        "write_digits": "Compute the engine's log-softmax in fp32, and write all its digits.",
        "align": "Give engine and trainer the same token ids, and align each log-probability with its token: logits predict the next one.",
        "mask": "Leave these tokens out of the loss: write null for what the engine did not generate, or forbid the same in the trainer.",
        "check_weights": "Compare the engine's weights and caches with the trainer's, or correct with importance ratios.",
        "tell_apart": "Give log-probabilities of more tokens, in more sequences, to tell these causes apart.",
        "more_tokens": "Give log-probabilities of about {needed:count} tokens, in 8 or more sequences: they probably decide.",
        "more_sequences": "Give log-probabilities of more tokens, in at least 8 sequences.",
        "at_limit": "Judge by the size: more tokens hardly decide a ratio so close to the limit of {band:magnitude}.",
        "nothing": "Rounding needs no fix here, unless bf16 itself costs too much.",
        "short": "The text gives {sequences:#sequence} of {length:#token}, fewer than asked for.",
        "part": "Errors by layer are those of the first {length:#token} of {sequences:#sequence} of the engine.",
        "attention": "This model does not support {asked} attention: the reference ran with {attention}.",
        "other_attention": "Compared with {attention} attention in fp32, which some families compute as another function: {variants:list}.",
        "no_effect": "No effect on this CPU: {settings:list}.",
        "no_router": "No effect without a router: router in fp32 ({variants:list}).",
        "wide_softmax": "With softmax in fp32 and sdpa attention everything between the projections is in fp32 ({variants:list}).",
        "kept_fp32": "transformers keeps {names:list} in fp32 when it loads {dtype}, and so did {variants:list}.",
        "rounded_all": "{variants:list} rounded every parameter to {dtype}; transformers keeps {names:list} in fp32 when it loads {dtype}.",
        "random": "The weights are random: trained weights may be larger and have other errors.",
        "pre_rounded": "Each variant is compared with fp32 of the same rounded weights: only the error of the computation is left.",
        "forbidden": "In no average, because their log-probability is minus infinity: {tokens:#token}.",
        "not_tried": "Not tried as causes: {causes:list}.",
    }
)

CAUSES = Words(
    {
        "temperature": "a temperature of {value:magnitude}",
        "filter": "a filter of tokens ({value})",
        "rounded": "log-probabilities rounded to {value}",
        "logarithm": "logarithms to base {value}",
        "offset": "log-probabilities moved by {value:#token}",
        "quantized": "layers' weights in {value}",
        "forbidden": "{value:#forbidden token}",
    }
)
"""What an engine may have done, by the kind of a cause. value: as in `Cause`."""


def cause_text(cause: Any) -> str:
    """Write a cause."""
    return CAUSES.text(cause.cause, {"value": cause.value})


def tiles(report: Any) -> list[Tile]:
    """Return the short answers: of an engine, the closest variant, the worst layer, the importance ratio, and fp16."""
    engine = [_engine(report.engine)] if report.engine is not None else []
    variants, tokens = report.variants, report.inputs.predicted
    measures = [_closest(variants, tokens), _worst_layer(variants), _importance_ratio(variants, tokens)]
    return [*engine, *measures, _safe_in_fp16(report.fp16)]


def nats(value: float, changed: float, tokens: int) -> str:
    """Write a mean difference of log-probabilities with what it means: ``0.02 nats over 46 tokens: ...``."""
    return f"{magnitude(value)} nats over {plural(tokens, 'token')}: the probability of a token changes by {share(changed)}"


def measured(variants: "dict[str, Variant]", error: "Callable[[Variant], float | None]") -> dict[str, float]:
    """Return an error by variant, without variants that overflow, or that equal the reference while another does not."""
    errors = ((name, error(variant)) for name, variant in variants.items() if variant.overflow is None)
    known = {name: value for name, value in errors if value is not None}
    return {name: value for name, value in known.items() if value} or known


def _cannot_tell(label: str, detail: str = "No variant has a finite error.") -> Tile:
    return Tile(label=label, value="Cannot tell", kind="undecided", detail=detail)


def _closest(variants: "dict[str, Variant]", tokens: int) -> Tile:
    errors = measured(variants, lambda variant: variant.summary.logprob_mean)
    if not errors:
        return _cannot_tell("Closest to fp32")
    closest, changes = min(errors, key=errors.__getitem__), measured(variants, lambda variant: variant.logprobs.ratio_mean)
    means = nats(errors[closest], changes.get(closest, math.expm1(errors[closest])), tokens)
    if len(errors) > 1 and 0 < max(changes.values(), default=0.0) < WORTHWHILE * min(changes.values()):
        return Tile(label="Closest to fp32", value="No clear difference", kind="fact", detail=f"Mean error of {closest}: {means}.")
    return Tile(label="Closest to fp32", value=closest, kind="fact", detail=f"Mean error: {means}.")


def _worst_layer(variants: "dict[str, Variant]") -> Tile:
    errors = measured(variants, lambda variant: variant.summary.mid_max)
    if not errors:
        return _cannot_tell("Worst layer")
    best, worst = min(errors, key=errors.__getitem__), max(errors, key=errors.__getitem__)
    ends = list(dict.fromkeys(share(errors[name]) for name in (best, worst)))
    compared = " in the best and the worst variant" if len(ends) > 1 else ""
    detail = f"Relative error of a layer's output{compared}, largest in layer {variants[worst].summary.mid_max_layer} of {worst}."
    return Tile(label="Worst layer", value=" to ".join(ends), kind="fact", detail=detail)


def _importance_ratio(variants: "dict[str, Variant]", tokens: int) -> Tile:
    errors = measured(variants, lambda variant: variant.logprobs.ratio_mean)
    if not errors:
        return _cannot_tell("Importance ratio")
    name = max(errors, key=errors.__getitem__)
    most = share(variants[name].logprobs.ratio_max)
    detail = (
        f"Mean distance from 1 of the ratio of a token's probabilities when sampling in {name} and training in fp32, over "
        f"{plural(tokens, 'token')}; at most {most}."
    )
    return Tile(label="Importance ratio", value=share(errors[name]), kind="fact", detail=detail)


def _safe_in_fp16(fp16: "Fp16") -> Tile:
    label, margin = "Safe in fp16?", fp16.margin
    if fp16.verdict is None or margin is None:
        return _cannot_tell(label, "All values are 0 on these texts.")
    if fp16.verdict == "overflows":
        detail = "A value of a run in fp16 overflows." if fp16.value is None else f"Above 65,504: {magnitude(fp16.value)} in {fp16.module}."
        return Tile(label=label, value="Overflows", kind="warning", detail=detail)
    detail = f"The largest value is {magnitude(2.0**margin)}x below overflow ({fixed(margin, 1)} bits); other texts may exceed it."
    if fp16.verdict == "at_risk":
        return Tile(label=label, value="At risk", kind="inference", detail=detail)
    return Tile(label=label, value="Yes, on these texts", kind="fact", detail=detail)


def _engine(engine: "Engine") -> Tile:
    kinds = {"within": ("Yes", "fact"), "beyond": ("No", "warning"), "undecided": ("Undecided", "undecided")}
    value, kind = kinds[engine.verdict]
    nearest = f" Nearest run of this model: {engine.nearest[0].run}." if engine.nearest else ""
    mean, own = engine.difference.mean_abs, f"{magnitude(engine.bf16.mean_abs)} nats for this model's own bf16 run"
    detail = f"Mean difference from fp32: {nats(mean, math.expm1(mean), engine.compared)}; {own}.{nearest}"
    return Tile(label="Engine within bf16 rounding?", value=value, kind=kind, detail=detail)
