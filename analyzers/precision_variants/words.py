"""The report's sentences: what was found, in plain words, and what to bear in mind."""

from collections.abc import Iterator, Mapping

from analyzers.language_models.load import OpenModel
from analyzers.precision_variants.report import Inputs, PrecisionRequest, Reference, Summary, Variant
from analyzers.precision_variants.variants import PARTS, Part, Settings
from analyzers.terminal import plural

# A change of an error by less than this share is called none.
_NOTHING = 0.1

_PARTS: dict[Part, str] = {
    "residual": "the residual stream",
    "lm_head": "the head",
    "norms": "the norms",
    "router": "the router",
    "softmax": "attention between its projections",
}
_MEASURES = {
    "mid_max": "the worst layer's error",
    "mid_max_bw": "the worst layer's gradient error",
    "logprob_mean": "the error of log-probabilities",
}


def statement(reference: Reference, variants: Mapping[str, Variant], routed: bool) -> str:
    """The reading, one sentence for each finding. routed: the model has a router."""
    said = [*_same(variants), *_each(reference, variants), *_steps(variants, routed), *_dtypes(variants)]
    return " ".join(said)


def notes(
    request: PrecisionRequest, inputs: Inputs, reference: Reference, variants: Mapping[str, Variant], opened: OpenModel, routed: bool
) -> Iterator[str]:
    """What limits the answer. routed: the model has a router."""
    if inputs.sequences < request.sequences or inputs.length < request.sequence_length:
        asked = f"{plural(request.sequences, 'sequence')} of {plural(request.sequence_length, 'token')}"
        yield f"The text is too short for {asked}: there are {inputs.sequences} of {inputs.length}."
    if opened.attention != request.attention:
        yield f"This model has no {request.attention} attention: the reference ran with {opened.attention}."
    yield from opened.notes()
    if opened.device == "cpu" and any(variant.settings.dtype == "tf32" for variant in variants.values()):
        yield "TF32 is of GPUs: on this CPU it is fp32."
    if opened.device == "cpu" and any(not variant.settings.reduced_reductions for variant in variants.values()):
        yield "How products are added up is chosen on GPUs only: a CPU adds up 16-bit products in fp32."
    yield from _parts(variants, routed)
    yield from _rounded(variants, opened)
    if request.random_init:
        yield "The weights are random: the trained ones may have larger numbers, and other errors."
    if request.pre_rounded:
        yield "Each variant is compared with a reference whose weights are rounded as its own: what is left is the rounding of computation."
    pooled = [name for name, variant in variants.items() if any(row.name.startswith("parameters of layer") for row in variant.tensors)]
    if pooled:
        yield "There are too many parameters for a row each: their gradients are pooled by layer, and by kind."
    if opened.facts.quantization is not None:
        yield "The stored weights are quantized; the reference runs them as they are after decoding."
    if reference.layers < 3:
        yield f"The model has {plural(reference.layers, 'layer')}: there is hardly a middle to speak of."


def _parts(variants: Mapping[str, Variant], routed: bool) -> Iterator[str]:
    """What parts in fp32 come to that are not there, or that torch runs in a way of its own."""
    idle = [name for name, each in variants.items() if "router" in each.settings.fp32 and each.settings.fp32 != PARTS]
    if idle and not routed:
        yield f"This model has no router: router in fp32 ({_listed(idle)}) changes nothing."
    wide = [name for name, each in variants.items() if "softmax" in each.settings.fp32 and each.attention == "sdpa"]
    if wide:
        yield (
            f"Softmax in fp32 ({_listed(wide)}) is run by sdpa attention on fp32 queries, keys and values: everything between the "
            "projections is in fp32."
        )


def _rounded(variants: Mapping[str, Variant], opened: OpenModel) -> Iterator[str]:
    """Parameters that transformers itself would load in fp32."""
    always, fp16 = (set(getattr(opened.outline, f"_keep_in_fp32_modules{end}", None) or ()) for end in ("_strict", ""))
    for dtype, named in (("bf16", always), ("fp16", always | fp16)):
        kept = [each for each in sorted(named) if any(f".{each}." in f".{name}." for name, _ in opened.outline.named_parameters())]
        rounds = [name for name, each in variants.items() if each.settings.dtype == dtype and _rounds(each.settings, kept)]
        if rounds:
            yield f"{_listed(rounds)} rounded {_listed(kept)} to {dtype}; transformers loads them in fp32 beside {dtype}."


def _rounds(settings: Settings, kept: list[str]) -> bool:
    """Whether any of the modules ``kept`` is rounded."""
    return not settings.autocast and any("norms" not in settings.fp32 or "norm" not in each for each in kept)


def _same(variants: Mapping[str, Variant]) -> Iterator[str]:
    same = [name for name, variant in variants.items() if all(row.rms == 0 and not row.nonfinite for row in variant.tensors)]
    if same:
        yield f"{_listed(same)} {'gives' if len(same) == 1 else 'give'} the reference's own bits."


def _each(reference: Reference, variants: Mapping[str, Variant]) -> Iterator[str]:
    """Of each dtype as it is, without parts in fp32: how large the error is, and what overflows."""
    for name, variant in variants.items():
        where = variant.overflow or variant.overflow_bw
        if where is not None:
            numbers = plural(where.nonfinite, "number")
            way = "on the way back " if variant.overflow is None else ""
            layer = _place(where.layer, reference.layers)
            are = "is" if where.nonfinite == 1 else "are"
            yield f"{name} overflows {way}first in {layer} ({where.name}), where {numbers} {are} not finite."
        elif not variant.settings.fp32 and (variant.summary.mid_max or variant.summary.logits or variant.summary.parameters_bw):
            found = variant.summary
            said = f"In {name} logits are off by {_percent(found.logits)}, gradients of parameters by {_percent(found.parameters_bw)}"
            if found.mid_max:
                said = f"In {name} hidden states of the middle layers are off by {_percent(found.mid_median)} in the median and "
                said += f"{_percent(found.mid_max)} in the worst (layer {found.mid_max_layer}), "
                said += f"gradients by {_percent(found.mid_median_bw)} and {_percent(found.mid_max_bw)}"
            nats = f"; log-probabilities by {found.logprob_mean:.2g} nats on average and {found.logprob_max:.2g} at most"
            yield said + (nats if found.logprob_mean is not None and found.logprob_max is not None else "") + "."
    if reference.fp16_overflow is not None and not any(variant.settings.dtype == "fp16" for variant in variants.values()):
        yield f"In fp16 {_place(reference.fp16_overflow.layer, reference.layers)} would overflow first ({reference.fp16_overflow.name})."


def _steps(variants: Mapping[str, Variant], routed: bool) -> Iterator[str]:
    """What parts in fp32 bring, beside the variant that is otherwise the same."""
    for name, variant in variants.items():
        parts = [part for part in variant.settings.fp32 if routed or part != "router"]
        beside = _beside(variant.settings, variants)
        if not parts or beside is None:
            continue
        changes = {words: change for key, words in _MEASURES.items() if (change := _change(beside.summary, variant.summary, key))}
        what = "every part" if variant.settings.fp32 == PARTS else _listed([_PARTS[part] for part in parts])
        felt = {words: change for words, change in changes.items() if abs(change - 1) >= _NOTHING}
        cuts = [f"{words} {_plain(change)} times" for words, change in felt.items() if change > 1]
        raises = [f"{words} {_plain(1 / change)} times" for words, change in felt.items() if change < 1]
        does = [f"{verb} {_listed(words)}" for verb, words in (("cuts", cuts), ("raises", raises)) if words]
        if changes:
            yield f"Keeping {what} in fp32 ({name}) {' but '.join(does) if does else 'changes next to nothing'}."


def _beside(settings: Settings, variants: Mapping[str, Variant]) -> Variant | None:
    """The variant without parts in fp32 that is otherwise the same; how products are added up matters little, and may differ."""
    plain = settings.model_copy(update={"fp32": (), "reduced_reductions": True})
    return next((each for each in variants.values() if each.settings.model_copy(update={"reduced_reductions": True}) == plain), None)


def _change(before: Summary, after: Summary, name: str) -> float | None:
    """By what factor an error became smaller."""
    first, second = getattr(before, name), getattr(after, name)
    return first / second if first and second else None


def _dtypes(variants: Mapping[str, Variant]) -> Iterator[str]:
    """bf16 beside fp16."""
    plain = {
        dtype: next((name for name, each in variants.items() if each.settings == Settings(dtype=dtype) and each.overflow is None), None)
        for dtype in ("bf16", "fp16")
    }
    if plain["bf16"] is None or plain["fp16"] is None:
        return
    found = variants[plain["fp16"]]
    change = _change(variants[plain["bf16"]].summary, found.summary, "mid_median")
    if change is not None:
        level = min((row for row in found.headroom if row.forward is not None), key=lambda row: row.forward or 0.0)
        yield (
            f"fp16's error is {_plain(change)} times smaller than bf16's in the median layer; its least headroom is {level.forward:.3g} "
            f"bits, in {_place(level.layer, len(found.headroom) - 2)}."
        )


def _plain(factor: float) -> str:
    return f"{factor:,.0f}" if factor >= 10 else f"{factor:.2g}"


def _place(layer: int, layers: int) -> str:
    return "the embeddings" if layer < 0 else "the head" if layer >= layers else f"layer {layer}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2g}%"


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
