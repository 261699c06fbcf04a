"""Decides what a report says: the answer, the advice that follows from it, and the notes."""

from collections.abc import Collection, Iterator, Sequence

from analyzers.checkpoints import Checkpoint, MergedCheckpoint, Unmatched, account_notes, layout_notes
from analyzers.comparison.sparsity.changes import Changes
from analyzers.comparison.sparsity.report import SparsityReport
from analyzers.comparison.sparsity.rows import Adapter, Survival
from analyzers.comparison.sparsity.words import WORDS
from analyzers.core import limits
from analyzers.core.notes import Advice, Note
from analyzers.core.records import Interval
from analyzers.core.report import needs_the_whole

# In multiples of the two bytes of a bf16 value: a changed value with an index of 4 bytes, and one bit per value that marks the changed
_LISTED, _MARKED = 3, 1 / 16
_WORTH = 0.9  # up to this cost the update is shipped alone
# Up to this share of its norm an update is called kept
_KEPT = 0.05


def answer(report: SparsityReport) -> Note:
    """Say what changed, or what merging an adapter into bf16 loses."""
    if report.adapter is not None:
        return _of_adapter(report.adapter)
    values, interval, swallowed = report.values_compared, report.interval, report.swallowed
    if not values:
        return WORDS.note("nothing")
    if report.num_changed == values:
        return WORDS.note("all-changed", values=values)
    if report.num_changed:
        changed = Interval(estimate=1 - interval.estimate, low=1 - interval.high, high=1 - interval.low) if interval else None
        share = changed or report.num_changed / values
        return WORDS.note("changed", changed=share, parameters=report.total_parameters, sparsity=report.sparsity)
    if swallowed.count and swallowed.meaningful:
        return WORDS.note("swallowed", values=values, lost=swallowed.share)
    if swallowed.count:
        return WORDS.note("conversion", values=values)
    if interval is not None and report.blocks is not None:
        return WORDS.note("none-seen", values=values, blocks=report.blocks, most=1 - interval.low)
    code = "none-differ" if report.unmatched.moved_layers else needs_the_whole("unchanged", report.coverage, "none-differ")
    return WORDS.note(code, values=values)


def _of_adapter(adapter: Adapter) -> Note:
    found = adapter.survival.get("bf16")
    if adapter.non_finite:
        return WORDS.note("adapter-broken", broken=adapter.non_finite)
    if found is None or found.lost_norm is None:
        empty = adapter.modules and all(module.empty for module in adapter.modules)
        return WORDS.note("adapter-nothing", modules=len(adapter.modules)) if empty else WORDS.note("adapter-unmeasured")
    bounded = found.low is not None and found.high is not None
    lost = Interval(estimate=found.lost_norm, low=found.low or 0.0, high=found.high or 0.0) if bounded else found.lost_norm
    if found.lost_norm <= _KEPT:
        return WORDS.note("adapter-kept", lost=lost)
    return WORDS.note("adapter-lost", lost=lost, changed=found.changed_share)


# What to do after some answers
_AFTER = {
    "nothing": "read-more",
    "unchanged": "check-upload",
    "conversion": "take-smaller",
    "adapter-broken": "check-matrices",
    "adapter-kept": "merge",
    "adapter-nothing": "check-adapter",
    "adapter-unmeasured": "check-adapter",
}


def advice(report: SparsityReport, said: Note) -> Advice:
    """Say what the answer, ``said``, means for training or storage."""
    model, swallowed, interval = report.tuned[-1].ref, report.swallowed, report.interval
    code = _AFTER.get(said.code, "")
    if said.code in ("none-differ", "none-seen"):
        code = "layer-order" if report.unmatched.moved_layers else "compare-rest" if interval is None else "use-exact"
    if said.code == "adapter-lost" and report.adapter is not None:
        code = "store-fp16" if _is_kept(report.adapter.survival.get("fp16")) else "store-fp32"
    if code:
        return WORDS.advice(code, "dtype", model)
    if swallowed.meaningful and swallowed.count:
        return WORDS.advice("fp32-masters", "dtype", model, lost=swallowed.share)
    cost = _cost(report.update_fraction or 0.0)
    if interval is None:
        return WORDS.advice("ship-update" if cost < _WORTH else "ship-whole", "dtype", model, cost=cost)
    low, high = _cost(1 - interval.high), _cost(1 - interval.low)
    code = "ship-update" if high < _WORTH else "ship-whole" if low >= _WORTH else "read-more-to-ship"
    return WORDS.advice(code, "dtype", model, cost=Interval(estimate=cost, low=low, high=high))


def _is_kept(found: Survival | None) -> bool:
    return found is not None and not found.overflowed and found.lost_norm is not None and found.lost_norm <= _KEPT


def _cost(changed: float) -> float:
    """Return the size of an update alone, by the share of the weights that changed, relative to all of these in bf16."""
    return min(_LISTED * changed, changed + _MARKED)


def notes(
    sides: Sequence[Checkpoint], names: Sequence[str], found: Unmatched, changes: Changes, eta: float, left_out: int
) -> Iterator[Note]:
    """Yield what changes how the numbers are to be read. left_out: requested matrices that were not decomposed."""
    merged = isinstance(sides[-1], MergedCheckpoint)  # whose sums are computed in fp32
    both = (changes.base, changes.last)
    stored = [] if merged else [[changes.table.tensor(number, side) for side in both] for number in changes.numbers]
    if changes.table.blocks is not None:
        yield WORDS.note("sample")
    yield from layout_notes(found, "the base", "the tuned checkpoint")
    pairs = {(base.stored_dtype, tuned.stored_dtype) for base, tuned in stored}
    kinds = sorted(f"{base} with {tuned}" for base, tuned in pairs if base != tuned)
    if kinds:
        yield WORDS.note("dtypes", pairs=tuple(kinds[:4]))
    if {tensor.counted_as for pair in stored for tensor in pair} - {"BF16"}:
        yield WORDS.note("probe", eta=eta)
    elif eta >= 2**-8:
        yield WORDS.note("coarse-probe", eta=eta)
    if changes.read["nonfinite"]:
        yield WORDS.note("non-finite", pairs=int(changes.read["nonfinite"]))
    if left_out:
        yield WORDS.note("not-decomposed", matrices=left_out, most=limits.SPECTRAL_MATRICES, elements=limits.SPECTRAL_ELEMENTS)
    for name, checkpoint in zip(names, sides, strict=True):
        yield from (note.about(name) for note in account_notes(checkpoint, checkpoint.tensors))


def notes_on(adapter: Adapter, base: str, stated: Collection[str], whole: bool) -> Iterator[Note]:
    """Yield what the answer on an adapter leaves out. stated: bases that its configuration names; whole: everything was read."""
    if whole and (apart := tuple(module.name for module in adapter.modules if not module.values_read)):
        yield WORDS.note("adapter-apart", modules=len(apart), names=apart)
    empty = tuple(module.name for module in adapter.modules if module.empty)
    if empty and len(empty) < len(adapter.modules):
        yield WORDS.note("adapter-empty", modules=len(empty), of=len(adapter.modules), names=empty)
    if others := sorted(name for name in stated if name.lower() != base.lower()):
        yield WORDS.note("adapter-base", names=tuple(others))
