"""Decides what a comparison says: the answer, the advice that follows from it, and the notes."""

from collections.abc import Collection, Iterator, Sequence

from analyzers.checkpoints import Checkpoint, MergedCheckpoint, Unmatched, account_notes, layout_notes, moved_layers
from analyzers.comparison.sparsity.changes import Changes
from analyzers.comparison.sparsity.report import Adapter, AdapterModule, Survival, Swallowed
from analyzers.comparison.sparsity.words import WORDS
from analyzers.core import limits
from analyzers.core.coverage import Coverage
from analyzers.core.notes import Advice, Note
from analyzers.core.records import Interval
from analyzers.core.report import needs_the_whole

# In multiples of the two bytes of a bf16 value: a changed value with an index of 4 bytes, and one bit per value that marks the changed
_LISTED, _MARKED = 3, 1 / 16
_WORTH = 0.9  # up to this cost the update is shipped alone
# Up to this share of its norm an update is called kept
_KEPT = 0.05
_ROUNDING = 2.0**-23  # an update, as a share of the weights, that sums in fp32 leave of adapters that cancel


def answer(
    changes: Changes,
    parameters: int,
    swallowed: Swallowed,
    interval: Interval | None,
    coverage: Sequence[Coverage],
    found: Unmatched,
    same_files: bool,
) -> Note:
    """Say what changed. parameters: elements matched; interval: of sparsity, in a sample."""
    counts, blocks, sparsity = changes.read, changes.estimates.blocks, changes.whole.unchanged()
    values = int(counts["values"])
    if sparsity is None:
        return WORDS.note("nothing")
    if same_files:
        return WORDS.note("same-files")
    if counts["changed"] == values:
        return WORDS.note("all-changed", values=values)
    if counts["changed"]:
        changed = interval and Interval(estimate=1 - interval.estimate, low=1 - interval.high, high=1 - interval.low)
        return WORDS.note("changed", changed=changed or float(counts["changed"]) / values, parameters=parameters, sparsity=sparsity)
    if counts["differ"]:
        return (
            WORDS.note("swallowed", values=values, lost=swallowed.share)
            if swallowed.meaningful
            else WORDS.note("conversion", values=values)
        )
    if interval is not None and blocks is not None:
        return WORDS.note("none-seen", values=values, blocks=blocks, most=1 - interval.low)
    code = "none-differ" if moved_layers(found) else needs_the_whole("unchanged", coverage, "none-differ")
    return WORDS.note(code, values=values)


_AFTER = {"nothing": "read-more", "same-files": "check-upload", "unchanged": "check-upload", "conversion": "take-smaller"}


def advice(
    said: Note, model: str, update_fraction: float | None, swallowed: Swallowed, interval: Interval | None, found: Unmatched
) -> Advice:
    """Say what the share of changed weights means for training or storage. said: the `answer` about ``model``; interval: as there."""
    if said.code in ("none-differ", "none-seen"):
        code = "layer-order" if moved_layers(found) else "use-exact" if interval is not None else "compare-rest"
        return WORDS.advice(code, "dtype", model)
    if said.code in _AFTER:
        return WORDS.advice(_AFTER[said.code], "dtype", model)
    if swallowed.meaningful and swallowed.count:
        return WORDS.advice("fp32-masters", "dtype", model, lost=swallowed.share)
    cost = _cost(update_fraction or 0.0)
    if interval is None:
        return WORDS.advice("ship-update" if cost < _WORTH else "ship-whole", "dtype", model, cost=cost)
    low, high = _cost(1 - interval.high), _cost(1 - interval.low)
    code = "ship-update" if high < _WORTH else "ship-whole" if low >= _WORTH else "read-more-to-ship"
    return WORDS.advice(code, "dtype", model, cost=Interval(estimate=cost, low=low, high=high))


def _cost(changed: float) -> float:
    """Return the size of an update alone, by the share of the weights that changed, relative to all of these in bf16."""
    return min(_LISTED * changed, changed + _MARKED)


def of_adapter(adapter: Adapter) -> Note:
    """Say what merging the adapter into bf16 loses."""
    found = adapter.survival.get("bf16")
    if adapter.non_finite:
        return WORDS.note("adapter-broken", broken=adapter.non_finite)
    if found is None or found.lost_norm is None:
        empty = adapter.modules and all(module.empty for module in adapter.modules)
        return WORDS.note("adapter-nothing", modules=len(adapter.modules)) if empty else WORDS.note("adapter-unmeasured")
    if all(module.relative_norm is not None and module.relative_norm < _ROUNDING for module in adapter.modules):
        return WORDS.note("adapter-noise", most=_ROUNDING)
    if found.lost_norm <= _KEPT:
        return WORDS.note("adapter-kept", lost=_bounded(found))
    return WORDS.note("adapter-lost", lost=_bounded(found), changed=found.changed_share)


def _bounded(found: Survival) -> Interval | float | None:
    if found.lost_norm is None or found.low is None or found.high is None:
        return found.lost_norm
    return Interval(estimate=found.lost_norm, low=found.low, high=found.high)


_WITH_ADAPTER = {"adapter-broken": "check-matrices", "adapter-kept": "merge"}


def advice_on(adapter: Adapter, said: Note, model: str) -> Advice:
    """Say what to do with the adapter. said: `of_adapter`."""
    code = _WITH_ADAPTER.get(said.code, "check-adapter")
    if said.code == "adapter-lost":
        in_fp16 = adapter.survival.get("fp16")
        kept = in_fp16 is not None and not in_fp16.overflowed and in_fp16.lost_norm is not None and in_fp16.lost_norm <= _KEPT
        code = "store-fp16" if kept else "store-fp32"
    return WORDS.advice(code, "dtype", model)


def notes(
    sides: Sequence[Checkpoint], names: Sequence[str], unmatched: Unmatched, changes: Changes, eta: float, left_out: int
) -> Iterator[Note]:
    """Yield what changes how the numbers are to be read. left_out: requested matrices that were not decomposed."""
    merged = isinstance(sides[-1], MergedCheckpoint)  # whose sums are computed in fp32
    stored = [] if merged else [(changes.tensor(number, changes.base), changes.tensor(number, changes.last)) for number in changes.numbers]
    if changes.estimates.blocks is not None:
        yield WORDS.note("sample")
    yield from layout_notes(unmatched, "the base", "the tuned checkpoint")
    kinds = sorted({f"{base.dtype} with {tuned.dtype}" for base, tuned in stored if base.dtype != tuned.dtype})
    if kinds:
        yield WORDS.note("dtypes", pairs=tuple(kinds[:4]))
    if {tensor.counted_as for pair in stored for tensor in pair} - {"BF16"}:
        yield WORDS.note("probe", eta=eta)
    elif eta >= 2**-8:
        yield WORDS.note("coarse-probe", eta=eta)
    if changes.read["nonfinite"]:
        yield WORDS.note("non-finite", pairs=int(changes.read["nonfinite"]))
    if left_out:
        most, elements, side = limits.SPECTRAL_MATRICES, limits.SPECTRAL_ELEMENTS, limits.SPECTRAL_SIDE
        yield WORDS.note("not-decomposed", matrices=left_out, most=most, elements=elements, side=side)
    for name, checkpoint in zip(names, sides, strict=True):
        yield from (note.about(name) for note in account_notes(checkpoint, checkpoint.tensors))


def notes_on(adapter: Adapter, base: str, stated: Collection[str], whole: bool) -> Iterator[Note]:
    """Yield what the answer on an adapter leaves out. stated: bases that its configuration names; whole: everything was read."""
    if whole and (apart := [module for module in adapter.modules if not module.values_read]):
        yield WORDS.note("adapter-apart", modules=len(apart), names=_names(apart))
    empty = [module for module in adapter.modules if module.empty]
    if empty and len(empty) < len(adapter.modules):
        yield WORDS.note("adapter-empty", modules=len(empty), of=len(adapter.modules), names=_names(empty))
    if others := sorted(name for name in stated if name.lower() != base.lower()):
        yield WORDS.note("adapter-base", names=tuple(others))


def _names(modules: Sequence[AdapterModule]) -> tuple[str, ...]:
    return tuple(module.name for module in modules)
