"""Decides what a run says, from its facts: the answer, the advice, and the notes, as codes with values."""

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from analyzers.core.notes import Advice, Note
from analyzers.core.records import Interval
from analyzers.precision.engine.measurements import CauseKind, Engine, Ratio
from analyzers.precision.measurements import Fp16, Inputs, Reference, Variant
from analyzers.precision.variants import PARTS as EVERY_PART
from analyzers.precision.variants import Settings
from analyzers.precision.words import CAUSES, PARTS, WORDS, WORTHWHILE, cause_text, measured

if TYPE_CHECKING:
    from analyzers.language_models.load import OpenModel
    from analyzers.precision.casts import RunnableModel
    from analyzers.precision.request import PrecisionRequest


def answer(reference: Reference, variants: Mapping[str, Variant], fp16: Fp16, engine: Engine | None, tokens: int) -> Note:
    """Return the verdict: an overflow wherever it is known, then that of an engine; else the closest variant.

    tokens: whose probabilities were compared.
    """
    overflow = WORDS.note("fp16_overflows", module=fp16.module, value=fp16.value) if fp16.module is not None else None
    if engine is not None:
        judged = _of_engine(engine)
        if overflow is None:
            return judged
        return judged.model_copy(update={"values": judged.values | overflow.values, "text": f"{overflow.text} {judged.text}"})
    if overflow is not None:
        return overflow
    over = {name: first for name, variant in variants.items() if (first := variant.overflow or variant.overflow_bw) is not None}
    if over:
        return WORDS.note("not_finite", variants=tuple(over), where=next(iter(over.values())).where(reference.layers))
    errors = measured(dict(variants), lambda variant: variant.logprobs.ratio_mean)
    if not any(errors.values()):
        return WORDS.note("exact", variants=tuple(variants), tokens=tokens)
    closest, farthest = min(errors, key=errors.__getitem__), max(errors, key=errors.__getitem__)
    least, most = errors[closest], errors[farthest]
    if closest == farthest:
        return WORDS.note("single", variant=closest, error=least, tokens=tokens)
    code = "alike" if most < WORTHWHILE * least else "closest"
    return WORDS.note(code, closest=closest, least=least, farthest=farthest, most=most, tokens=tokens)


def _times(ratio: Ratio) -> Interval | float | None:
    if ratio.value is None or ratio.low is None or ratio.high is None:
        return ratio.value
    return Interval(estimate=ratio.value, low=ratio.low, high=ratio.high)


def _of_engine(engine: Engine) -> Note:
    ratio, causes = _times(engine.ratio), [cause for cause in engine.causes if cause.explains == "all"]
    if ratio is None:
        return WORDS.note("engine_unmeasured")
    if engine.verdict == "within":
        nats = engine.difference.mean_abs
        return WORDS.note("engine_within", difference=nats, percent=math.expm1(nats), ratio=ratio, tokens=engine.compared)
    if [cause.cause for cause in causes] == ["rounded"]:
        return WORDS.note("engine_digits", ratio=ratio, cause=cause_text(causes[0]))
    if engine.verdict == "undecided":
        return WORDS.note("engine_undecided", ratio=ratio, tokens=engine.compared)
    if not causes:
        return WORDS.note("engine_unexplained", ratio=ratio)
    if len(causes) == 1:
        return WORDS.note("engine_caused", ratio=ratio, cause=cause_text(causes[0]))
    return WORDS.note("engine_possible", ratio=ratio, causes=tuple(map(cause_text, causes)))


_TO_DO: dict[CauseKind, str] = {
    "temperature": "write_raw",
    "filter": "write_raw",
    "rounded": "write_digits",
    "logarithm": "write_natural",
    "offset": "align",
    "quantized": "check_weights",
    "forbidden": "mask",
}


def advice(model: str, variants: Mapping[str, Variant], fp16: Fp16, engine: Engine | None) -> Advice:
    """Return what to do about an engine, else about an overflow, else about the error of bf16; next comes the passport of the weights."""
    code, values = engine_advice(engine) if engine is not None else _advice(variants, fp16)
    return WORDS.advice(code, "dtype", model, **values)


def _advice(variants: Mapping[str, Variant], fp16: Fp16) -> tuple[str, dict[str, float | tuple[str, ...]]]:
    if fp16.verdict == "overflows":
        return "use_bf16", {}
    plain = next((each.summary.mid_max for each in variants.values() if each.settings == Settings(dtype="bf16")), None)
    partly = [each for each in variants.values() if each.settings.fp32 and each.settings == Settings(dtype="bf16", fp32=each.settings.fp32)]
    gains = [(len(each.settings.fp32), each.summary.mid_max, each) for each in partly if plain and each.summary.mid_max]
    worthwhile = [gain for gain in gains if plain and plain / gain[1] >= WORTHWHILE]
    if worthwhile and plain:
        _, error, best = min(worthwhile, key=lambda gain: gain[:2])
        return "fix", {"parts": tuple(PARTS[part] for part in best.settings.fp32), "factor": plain / error}
    if plain is None:
        return "try_bf16", {}
    if any("residual" in each.settings.fp32 for _, _, each in gains):
        return "no_fix", {"worthwhile": WORTHWHILE}
    return "try_residual", {}


def engine_advice(engine: Engine) -> tuple[str, dict[str, float | tuple[str, ...]]]:
    """Return the code of the advice about an engine, with its values."""
    if engine.verdict == "within":
        return "nothing", {}
    if engine.verdict == "undecided":
        if engine.ratio.low is None:
            return "more_sequences", {}
        return ("at_limit", {"band": engine.band}) if engine.needed is None else ("more_tokens", {"needed": engine.needed})
    codes = {_TO_DO[cause.cause] for cause in engine.causes if cause.explains == "all"}
    return ("tell_apart" if len(codes) > 1 else next(iter(codes), "check_weights")), {}


def notes(
    request: "PrecisionRequest",
    inputs: Inputs,
    reference: Reference,
    variants: Mapping[str, Variant],
    engine: Engine | None,
    opened: "OpenModel",
    model: "RunnableModel",
) -> Iterator[Note]:
    """Yield what changes how the numbers are to be read."""
    short = inputs.sequences < request.sequences or inputs.length < request.sequence_length
    if engine is not None:
        yield from engine_notes(engine, inputs)
    elif short and not request.token_ids:
        yield WORDS.note("short", sequences=inputs.sequences, length=inputs.length)
    if opened.attention != request.attention:
        yield WORDS.note("attention", asked=request.attention, attention=opened.attention)
    yield from opened.notes()
    yield from _settings_notes(variants, opened.device, model.has_router)
    yield from _in_fp32(variants, model)
    other = tuple(name for name, variant in variants.items() if variant.attention != reference.attention)
    if other:
        yield WORDS.note("other_attention", attention=reference.attention, variants=other)
    if request.random_init:
        yield WORDS.note("random")
    if request.pre_rounded:
        yield WORDS.note("pre_rounded")


def engine_notes(engine: Engine, inputs: Inputs) -> Iterator[Note]:
    """Yield what changes how the numbers of an engine are to be read."""
    if inputs.predicted < engine.compared:
        yield WORDS.note("part", length=inputs.length, sequences=inputs.sequences)
    if engine.forbidden:
        yield WORDS.note("forbidden", tokens=engine.forbidden)
    if engine.not_tried:
        yield WORDS.note("not_tried", causes=(CAUSES.text("quantized", {"value": ", ".join(engine.not_tried)}),))


def _settings_notes(variants: Mapping[str, Variant], device: str, routed: bool) -> Iterator[Note]:
    """Yield notes on settings without effect, and on softmax, which sdpa attention extends to everything between the projections."""
    settings = {name: variant.settings for name, variant in variants.items()}
    for_gpus = {"dtype=tf32": [each.dtype == "tf32" for each in settings.values()]}
    for_gpus["reductions=full"] = [not each.reduced_reductions for each in settings.values()]
    idle = tuple(setting for setting, found in for_gpus.items() if any(found))
    if device == "cpu" and idle:
        yield WORDS.note("no_effect", settings=idle)
    unrouted = tuple(name for name, each in settings.items() if "router" in each.fp32 and each.fp32 != EVERY_PART)
    if unrouted and not routed:
        yield WORDS.note("no_router", variants=unrouted)
    wide = tuple(name for name, each in settings.items() if "softmax" in each.fp32 and variants[name].attention == "sdpa")
    if wide:
        yield WORDS.note("wide_softmax", variants=wide)


def _in_fp32(variants: Mapping[str, Variant], model: "RunnableModel") -> Iterator[Note]:
    """Yield notes on parameters and buffers that transformers loads in fp32."""
    from analyzers.precision.casts import DTYPES

    for dtype in dict.fromkeys(variant.settings.dtype for variant in variants.values() if variant.settings.dtype in ("bf16", "fp16")):
        names = tuple(model.loaded(DTYPES[dtype]).in_fp32())
        in_dtype = {name: variant.settings for name, variant in variants.items() if variant.settings.dtype == dtype}
        loaded = tuple(name for name, settings in in_dtype.items() if settings.round == "loaded" and not settings.autocast)
        rounded = tuple(name for name, settings in in_dtype.items() if settings.round == "all")
        if names and loaded:
            yield WORDS.note("kept_fp32", names=names, dtype=dtype, variants=loaded)
        if names and rounded:
            yield WORDS.note("rounded_all", names=names, dtype=dtype, variants=rounded)
