"""Sentences about an adapter: what merging it loses, how far that reaches, and how two adapters relate."""

from collections.abc import Collection, Iterator

from analyzers.formatting import listed, magnitude, plural, share
from analyzers.update_sparsity.adapters.report import FIRST, SOURCES, Adapter, AdapterOverlap, Survival, SurvivalPart

# Up to this share of its norm an update is called kept
_KEPT = 0.05
# A module is named among the worst if it loses so many times as much as all together, and so many of its values were read
_WORSE, _FEWEST = 1.15, 4096
_NOISE = 2.0**-20  # drift of a tied head that is an error of the arithmetic
_ROUNDING = 2.0**-23  # an update, as a share of the weights, that sums in fp32 leave of adapters that cancel
_UNRELATED = 3  # a cosine up to so many standard deviations may be chance


def lost(norm: float | None) -> str:
    """Format the norm lost: as a share of the update's, or as a multiple if it is larger."""
    return share(norm) if norm is None or norm <= 1 else f"{magnitude(norm)} times"


def advice(adapter: Adapter) -> str:
    """Say what to do with the adapter."""
    if adapter.non_finite:
        return "Do not merge or use this adapter: look for NaN and infinite values in its matrices (check)."
    in_bf16, in_fp16, in_int4 = (adapter.survival.get(name) for name in ("bf16", "fp16", "int4"))
    if in_bf16 is None or in_bf16.lost_norm is None or _is_noise(adapter):
        return "Check that this is the right adapter for this base, and that it was trained."
    if in_bf16.lost_norm > _KEPT:
        kept = in_fp16 is not None and not in_fp16.overflowed and (in_fp16.lost_norm or 1) <= _KEPT
        return f"Store the merged model in {'fp16, which keeps the update, or in ' if kept else ''}fp32, or load the adapter with its base."
    if in_int4 is not None and (in_int4.lost_norm or 0) > _KEPT:
        size = f"{lost(in_int4.lost_norm)} {'the update' if (in_int4.lost_norm or 0) > 1 else 'of the update'}"
        return (
            "Merge it in bf16 if you like. For int4, quantize the base and load the adapter unmerged: quantized after the merge, "
            f"rounding errors are {size}."
        )
    return "Merge it if you like."


def _is_noise(adapter: Adapter) -> bool:
    """Return whether the update is an error of the arithmetic, as of adapters that cancel."""
    return all(module.relative_norm is not None and module.relative_norm < _ROUNDING for module in adapter.modules)


def statement(adapter: Adapter, sampled: bool) -> str:
    """Say what merging the adapter into bf16 loses, and of how much of it that is said. sampled: whether a part of the weights was read."""
    return " ".join([_merged(adapter, "about " if sampled else ""), *_limits(adapter, sampled), *map(_related, adapter.overlap)])


def _merged(adapter: Adapter, about: str) -> str:
    broken = ""
    if adapter.non_finite:
        become = plural(adapter.non_finite, "merged weight is", "merged weights are")
        broken = f"{become} NaN or infinite where the base is finite; this is about the others. "
    return broken + _kept(adapter, about)


def _kept(adapter: Adapter, about: str) -> str:
    found = adapter.survival.get("bf16")
    if found is None or found.lost_norm is None:
        if adapter.modules and all(module.empty for module in adapter.modules):
            return "The adapter changes nothing: its update is 0 in all modules that match the base."
        if any(module.values_read for module in adapter.modules):
            return (
                "What a merge would keep of the adapter was not measured: no weight that was read changes by a finite amount other than 0."
            )
        return "What a merge would keep of the adapter was not measured: no weight that it changes was read."
    interval = f"95% interval: {lost(found.low)} to {lost(found.high)}" if found.low is not None else ""
    worst = _worst(found)
    within = "; ".join(part for part in (interval, worst and f"{worst} most") if part)
    aside = f" ({within})" if within else ""
    if _is_noise(adapter):
        return f"The update is within the rounding errors of fp32: less than {magnitude(_ROUNDING)} of the norm of the weights."
    several = len(adapter.adapters) > 1
    this, s, its = ("these adapters", "", "their") if several else ("this adapter", "s", "its")
    if found.lost_norm <= _KEPT:
        return f"Merged into bf16 {this} keep{s} {its} update: rounding loses {about}{share(found.lost_norm)} of its norm{aside}."
    instead = f"merge in fp32 and store fp32, or load {'them' if several else 'it'} unmerged"
    if found.lost_norm < 1:
        return f"Merged into bf16 {this} lose{s} {about}{share(found.lost_norm)} of {its} update{aside}: {instead}."
    if not found.changed_share:
        return f"Merged into bf16 {this} lose{s} {its} whole update: no weight changes. Instead, {instead}."
    size = f"{about}{lost(found.lost_norm)} as large as the update"
    return f"Merged into bf16 {this} {'are' if several else 'is'} lost in rounding, whose errors are {size}{aside}: {instead}."


def _worst(found: Survival) -> str:
    """Name the modules that lose most, of one kind: ``q_proj of layers 0 to 3``; empty if none stands out."""
    worse = [part for part in found.worst if part.touched >= _FEWEST and (part.lost_norm or 0) >= _WORSE * (found.lost_norm or 0)]
    if not worse:
        return ""
    kind, layer = _kind(worse[0])
    if layer is None:
        return kind
    layers = sorted({number for name, number in map(_kind, worse) if name == kind and number is not None})
    if len(layers) > 2 and layers[-1] - layers[0] == len(layers) - 1:
        return f"{kind} of layers {layers[0]} to {layers[-1]}"
    return f"{kind} of {'layer' if len(layers) == 1 else 'layers'} {listed([str(number) for number in layers])}"


def _kind(part: SurvivalPart) -> tuple[str, int | None]:
    """Return the last part of a module's name, and the number of its layer."""
    names = part.name.removesuffix(".weight").split(".")
    return names[-1], next((int(name) for name in names if name.isdecimal()), None)


def _limits(adapter: Adapter, sampled: bool) -> Iterator[str]:
    """Yield what the statement leaves out: modules without a counterpart, and those that change nothing."""
    total = adapter.modules_total + adapter.unmatched_total
    if adapter.unmatched:
        left = plural(adapter.unmatched_total, "module was", "modules were")
        yield (
            f"{left} not merged: this is said of the other {adapter.modules_total:,} of {total:,} ({share(adapter.modules_total / total)})."
        )
    apart = [module for module in adapter.modules if not module.values_read]
    if apart and not sampled:
        change = plural(len(apart), "module has", "modules have")
        yield f"{change} no counterpart in the base to compare with, as a head that the base ties: nothing is said of what it loses."
    empty = sum(module.empty is True for module in adapter.modules)
    if empty and not all(module.empty for module in adapter.modules):
        yield f"{plural(empty, 'module changes', 'modules change')} nothing: s B A is 0."
    if (adapter.tied_drift or 0) > _NOISE:
        yield (
            f"The base ties its head to its embedding, and the adapter moves them apart, by {share(adapter.tied_drift)} of the norm: "
            "untie them in config.json of the merged model."
        )


def _related(overlap: AdapterOverlap) -> str:
    if overlap.cosine is None:
        return f"{overlap.first} and {overlap.second} have no updates to compare in the same modules."
    both = f"Where both {overlap.first} and {overlap.second} change a module"
    cosine = f"cosine {magnitude(overlap.cosine)} over {plural(overlap.modules, 'module')}"
    if abs(overlap.cosine) <= _UNRELATED * (overlap.cosine_by_chance or 0):
        return f"{both}, their updates are unrelated ({cosine}, as by chance)."
    if overlap.cosine < 0:
        return f"{both}, their updates fight: they partly cancel ({cosine})."
    return f"{both}, their updates pull in the same direction ({cosine})."


def notes(adapter: Adapter, exact: bool, base: str, stated: Collection[str], unmerged: bool) -> Iterator[str]:
    """Yield the limits of what is said about the adapter.

    exact: whether all weights were read; base: its reference; stated: the models on the Hub that the adapters name as their base;
    unmerged: whether they are stored in one file with their base.
    """
    if unmerged:
        yield (
            f"The adapter is stored with its base, which was compared with {base} in the first {FIRST:,} values of up to {SOURCES} of the "
            "changed tensors: they are equal. Where others differ, the update holds that difference too."
        )
    others = sorted(name for name in stated if name.lower() != base.lower())
    if others:
        yield f"The adapter's configuration names {listed(others)} as its base, and it was merged into {base}."
    if adapter.survival.get("fp8") is not None and not exact:
        yield (
            "fp8 stores each matrix with a scale of its largest weight: a sample knows only the largest one read, so its figures have no "
            "interval."
        )
    if any(adapter.survival.values()):
        yield (
            "In fp8 and int4 a scale follows the largest weight of its group, so nearly every value moves a little: the norm lost says "
            "what survives, not the share that changes."
        )
