"""The answer of precision variants in sentences, what to do about it, and what limits it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from analyzers.base import NextStep
from analyzers.formatting import listed, magnitude, rounded, share
from analyzers.precision_variants import fp16_passport
from analyzers.precision_variants.engine import sentences as engine_sentences
from analyzers.precision_variants.measurements import Inputs, Reference, Summary, Variant
from analyzers.precision_variants.variants import PARTS, Part, Settings
from analyzers.terminal import plural

if TYPE_CHECKING:
    from analyzers.language_models.load import OpenModel
    from analyzers.precision_variants.report import PrecisionReport
    from analyzers.precision_variants.request import PrecisionRequest

PART_NAMES: dict[Part, str] = {
    "residual": "the residual stream",
    "lm_head": "the head",
    "norms": "the norms",
    "router": "the router",
    "softmax": "attention (except its projections)",
}
# A fix is recommended only if it makes the error at least this many times smaller.
_WORTHWHILE = 1.2
# A smaller relative change of an error is reported as none.
_NEGLIGIBLE = 0.1
# Nats by which fp32 runs of the same function may differ.
_DISAGREEMENT = 1e-2

_MEASURES = {
    "mid_max": "the worst layer's error",
    "mid_max_bw": "the worst layer's gradient error",
    "logprob_mean": "the log-probability error",
}


def headline(report: "PrecisionReport") -> str:
    """Write which variant is closest to fp32, which is farthest, which overflow, and the fp16 passport; of an engine, the verdict."""
    if report.engine is not None:
        return engine_sentences.headline(report.engine)
    passport = report.fp16_passport if any(each.settings.dtype == "fp16" for each in report.variants.values()) else None
    return " ".join([_closest(report), *([fp16_passport.short(passport)] if passport is not None else [])])


def _closest(report: "PrecisionReport") -> str:
    errors = {name: variant.summary.logprob_mean for name, variant in report.variants.items()}
    known = {name: error for name, error in errors.items() if error is not None and report.variants[name].overflow is None}
    inexact = {name: error for name, error in known.items() if error}
    over = [name for name, variant in report.variants.items() if variant.overflow or variant.overflow_bw]
    overflows = f" {listed(over)} overflow{'s' if len(over) == 1 else ''}." if over else ""
    if not known:
        return f"No variant gives finite log-probabilities.{overflows}"
    if not inexact:
        return f"{listed([*known])} give{'s' if len(known) == 1 else ''} the log-probabilities of fp32 exactly.{overflows}"
    best, worst = min(inexact, key=inexact.__getitem__), max(inexact, key=inexact.__getitem__)
    if best == worst:
        return f"{best} changes log-probabilities by {magnitude(inexact[best])} nats on average.{overflows}"
    return (
        f"{best} is closest to fp32: it changes log-probabilities by {magnitude(inexact[best])} nats on average; "
        f"{worst} changes them most, by {magnitude(inexact[worst])}.{overflows}"
    )


def next_step(report: "PrecisionReport") -> NextStep:
    """Return advice, and the analyzer for the model's passport."""
    return NextStep(engine_sentences.advice(report.engine) if report.engine else _advice(report), "dtype", report.checkpoint.ref)


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
        parts = listed([PART_NAMES[part] for part in report.variants[name].settings.fp32])
        return f"Cheapest fix for bf16: keep {parts} in fp32, which makes the error of the worst layer {factor:.2g} times smaller."
    over = report.reference.fp16_overflow
    if over is not None:
        return f"Do not run this model in fp16: {over.name} overflows."
    return "Run a variant with the residual stream in fp32 (bf16_fp32_residual), often the cheapest fix."


def statement(reference: Reference, variants: Mapping[str, Variant], routed: bool) -> str:
    """Write the findings, one sentence each. routed: whether the model has a router."""
    return " ".join(
        [
            *_identical(variants),
            *_errors(reference, variants),
            *_clipping(variants),
            *_parts(variants, routed),
            *_formats(variants),
            *_adapters(variants),
        ]
    )


def notes(
    request: "PrecisionRequest",
    inputs: Inputs,
    reference: Reference,
    variants: Mapping[str, Variant],
    opened: "OpenModel",
    routed: bool,
    wide: Mapping[str, Sequence[str]],
    disagreements: Mapping[str, float],
) -> Iterator[str]:
    """Yield the caveats, one sentence each.

    routed: whether the model has a router; wide: names of the tensors that transformers keeps in fp32, by dtype; disagreements: as in
    `measure.Measurement`.
    """
    short = inputs.sequences < request.sequences or inputs.length < request.sequence_length
    if short and not request.token_ids and not request.logprobs:
        requested = f"{plural(request.sequences, 'sequence')} of {plural(request.sequence_length, 'token')}"
        yield f"The text is too short for {requested}: it gives {inputs.sequences} of {inputs.length}."
    if request.logprobs:
        yield (
            f"Errors by layer are those of the first {plural(inputs.length, 'token')} of {plural(inputs.sequences, 'sequence')} of the "
            "engine."
        )
    if opened.attention != request.attention:
        yield f"This model does not support {request.attention} attention: the reference ran with {opened.attention}."
    yield from opened.notes()
    if opened.device == "cpu" and any(variant.settings.dtype == "tf32" for variant in variants.values()):
        yield "TF32 exists on GPUs only: on this CPU it is fp32."
    if opened.device == "cpu" and any(not variant.settings.reduced_reductions for variant in variants.values()):
        yield "Reduced-precision reductions exist on GPUs only: a CPU accumulates 16-bit products in fp32."
    yield from _part_notes(variants, routed)
    yield from _in_fp32(variants, wide)
    yield from _own_references(variants, opened.attention, disagreements)
    for name, variant in variants.items():
        yield from _routing(name, variant)
    if request.random_init:
        yield "The weights are random: trained weights may be larger and have other errors."
    if request.pre_rounded:
        yield "Each variant is compared with a reference that has the same rounded weights: only the error of the computation is left."
    pooled = [name for name, variant in variants.items() if any(row.name.startswith("parameters of layer") for row in variant.tensors)]
    if pooled:
        yield "There are too many parameters for a row each: their gradients are pooled by layer and by kind."
    if reference.layers < 3:
        yield f"The model has only {plural(reference.layers, 'layer')}: the median and the maximum over layers say little."


def _part_notes(variants: Mapping[str, Variant], routed: bool) -> Iterator[str]:
    """Yield notes on fp32 parts that the model does not have, or that sdpa attention extends to everything between the projections."""
    idle = [name for name, each in variants.items() if "router" in each.settings.fp32 and each.settings.fp32 != PARTS]
    if idle and not routed:
        yield f"This model has no router: router in fp32 ({listed(idle)}) changes nothing."
    wide = [name for name, each in variants.items() if "softmax" in each.settings.fp32 and each.attention == "sdpa"]
    if wide:
        yield (
            f"With softmax in fp32 ({listed(wide)}) sdpa attention runs on fp32 queries, keys and values: everything between the "
            "projections is in fp32."
        )


def _in_fp32(variants: Mapping[str, Variant], wide: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield notes on parameters and buffers that transformers loads in fp32. wide: their names, by dtype."""
    for dtype, names in wide.items():
        in_dtype = {name: variant.settings for name, variant in variants.items() if variant.settings.dtype == dtype}
        loaded = [name for name, settings in in_dtype.items() if settings.round == "loaded" and not settings.autocast]
        rounded = [name for name, settings in in_dtype.items() if settings.round == "all"]
        if names and loaded:
            yield f"transformers keeps {listed(names)} in fp32 when it loads {dtype}, and so did {listed(loaded)}."
        if names and rounded:
            yield f"{listed(rounded)} rounded every parameter to {dtype}; transformers keeps {listed(names)} in fp32 when it loads {dtype}."


def _own_references(variants: Mapping[str, Variant], first: str, disagreements: Mapping[str, float]) -> Iterator[str]:
    """Yield notes on variants with a separate reference for their attention, and on its difference from the first reference."""
    for attention, nats in disagreements.items():
        names = [name for name, variant in variants.items() if variant.attention == attention]
        yield f"{listed(names)} {'is' if len(names) == 1 else 'are'} compared with an fp32 run of {attention} attention."
        if nats > _DISAGREEMENT:
            yield (
                f"In fp32, {attention} and {first} attention of this model differ by up to {nats:.2g} nats in a token's log-probability, "
                "more than rounding explains: transformers computes two different functions."
            )


def _routing(name: str, variant: Variant) -> Iterator[str]:
    """Yield how many tokens a variant sends to other experts than the reference, and which tensors have no error because of that."""
    routing = variant.routing
    if routing is not None and routing.rerouted:
        yield (
            f"{name} sends {routing.rerouted:,} of {plural(routing.tokens, 'token')} ({share(routing.rerouted / routing.tokens)}) to other "
            "experts than the reference in at least one layer; its errors include that."
        )
    inside = [row for row in variant.tensors if row.kind in ("inside", "inside_grad")]
    missing = [row for row in inside if row.rms is None and row.elements > row.nonfinite]
    if routing is not None and missing:
        yield (
            f"In {name} the values within the experts of {len(routing.apart)} of {plural(len(routing.layers), 'layer')} cannot be "
            f"compared: the reference chose other experts, or the same in another order. {len(missing):,} of "
            f"{plural(len(inside), 'tensor')} inside the layers ({share(len(missing) / len(inside))}) have no error."
        )


def _identical(variants: Mapping[str, Variant]) -> Iterator[str]:
    identical = [name for name, variant in variants.items() if all(row.rms == 0 and not row.nonfinite for row in variant.tensors)]
    if identical:
        yield f"{listed(identical)} {'is' if len(identical) == 1 else 'are'} identical to the reference."


def _errors(reference: Reference, variants: Mapping[str, Variant]) -> Iterator[str]:
    """Yield the first overflow of each variant, or else the size of its error if it has no fp32 parts."""
    for name, variant in variants.items():
        overflow = variant.overflow or variant.overflow_bw
        if overflow is not None:
            direction = "in the backward pass " if variant.overflow is None else ""
            values = f"{plural(overflow.nonfinite, 'value')} {'is' if overflow.nonfinite == 1 else 'are'} not finite"
            yield f"{name} overflows {direction}first in {layer_name(overflow.layer, reference.layers)} ({overflow.name}), where {values}."
        elif not variant.settings.fp32 and (variant.summary.mid_max or variant.summary.logits or variant.summary.parameters_bw):
            errors = variant.summary
            sentence = f"In {name} the relative error of hidden states is {_percent(errors.mid_median)} in the median layer and "
            sentence += f"{_percent(errors.mid_max)} in the worst (layer {errors.mid_max_layer}), that of their gradients "
            sentence += f"{_percent(errors.mid_median_bw)} and {_percent(errors.mid_max_bw)}"
            if errors.mid_max_bw_layer is not None:
                sentence += f" (layer {errors.mid_max_bw_layer})"
            nats = f"; log-probabilities are off by {errors.logprob_mean:.2g} nats on average and by up to {errors.logprob_max:.2g}"
            yield sentence + (nats if errors.logprob_mean is not None and errors.logprob_max is not None else "") + "."
    if reference.fp16_overflow is not None and not any(variant.settings.dtype == "fp16" for variant in variants.values()):
        first = reference.fp16_overflow
        yield f"fp16 would overflow first in {layer_name(first.layer, reference.layers)} ({first.name})."


def _clipping(variants: Mapping[str, Variant]) -> Iterator[str]:
    """Yield a sentence on the share of ratios whose gradient clipping sets to zero."""
    shares = [f"{_percent(variant.clipped)} in {name}" for name, variant in variants.items() if variant.clipped]
    if shares:
        yield f"Clipping sets the gradient of this share of the ratios to zero: {listed(shares)}."


def _parts(variants: Mapping[str, Variant], routed: bool) -> Iterator[str]:
    """Yield the effect of fp32 parts, compared with the same variant without them."""
    for name, variant in variants.items():
        parts = [part for part in variant.settings.fp32 if routed or part != "router"]
        without = _without_parts(variant.settings, variants)
        if not parts or without is None:
            continue
        changes = {words: change for key, words in _MEASURES.items() if (change := _change(without.summary, variant.summary, key))}
        what = "every part" if variant.settings.fp32 == PARTS else listed([PART_NAMES[part] for part in parts])
        relevant = {words: change for words, change in changes.items() if abs(change - 1) >= _NEGLIGIBLE}
        smaller = [f"{words} by a factor of {_plain(change)}" for words, change in relevant.items() if change > 1]
        larger = [f"{words} by a factor of {_plain(1 / change)}" for words, change in relevant.items() if change < 1]
        effects = [f"{verb} {listed(words)}" for verb, words in (("reduces", smaller), ("increases", larger)) if words]
        if changes:
            yield f"Keeping {what} in fp32 ({name}) {' but '.join(effects) if effects else 'changes next to nothing'}."


def _without_parts(settings: Settings, variants: Mapping[str, Variant]) -> Variant | None:
    """Return the variant that differs only by having no fp32 parts; reductions matter little and may also differ."""
    plain = settings.model_copy(update={"fp32": (), "reduced_reductions": True})
    matching = (variant for variant in variants.values() if variant.settings.model_copy(update={"reduced_reductions": True}) == plain)
    return next(matching, None)


def _change(before: Summary, after: Summary, name: str) -> float | None:
    """Return the factor by which an error became smaller; None if either is unknown or 0."""
    first, second = getattr(before, name), getattr(after, name)
    return first / second if first and second else None


def _formats(variants: Mapping[str, Variant]) -> Iterator[str]:
    """Yield a comparison of fp16 with bf16."""
    plain = {
        dtype: next((name for name, run in variants.items() if run.settings == Settings(dtype=dtype) and run.overflow is None), None)
        for dtype in ("bf16", "fp16")
    }
    if plain["bf16"] is None or plain["fp16"] is None:
        return
    fp16 = variants[plain["fp16"]]
    change = _change(variants[plain["bf16"]].summary, fp16.summary, "mid_median")
    if change is not None:
        least = min((row for row in fp16.headroom if row.forward is not None), key=lambda row: row.forward or 0.0)
        yield (
            f"fp16's error in the median layer is {_plain(change)} times smaller than bf16's; its smallest headroom is {least.forward:.3g} "
            f"bits, in {layer_name(least.layer, len(fp16.headroom) - 2)}."
        )


def _adapters(variants: Mapping[str, Variant]) -> Iterator[str]:
    """Yield what merging an adapter costs, where a variant ran both ways."""
    ways = {name: variant.settings.model_copy(update={"adapter": None}) for name, variant in variants.items()}
    for name, variant in variants.items():
        twins = (other for other in variants if ways[other] == ways[name] and variants[other].settings.adapter != "beside")
        merged = next(twins, None)
        if variant.settings.adapter != "beside" or merged is None:
            continue
        nats = [variants[each].summary.logprob_mean for each in (merged, name)]
        if nats[0] is not None and nats[1] is not None:
            yield (
                f"Merged in {variant.settings.dtype} ({merged}) the log-probabilities differ from fp32 by {nats[0]:.2g} nats on average, "
                f"unmerged ({name}) by {nats[1]:.2g}."
            )


def _plain(factor: float) -> str:
    return f"{factor:,.0f}" if factor >= 10 else f"{factor:.2g}"


def layer_name(layer: int, layers: int) -> str:
    """Return the name of a layer in a model of ``layers`` layers."""
    return "the embeddings" if layer < 0 else "the head" if layer >= layers else f"layer {layer}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{rounded(share, 2, 2):.2g}%"
