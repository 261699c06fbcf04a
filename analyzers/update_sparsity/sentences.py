"""Sentences that answer update sparsity: the report's statement, the advice that follows, and the limits of the answer."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from analyzers import limits
from analyzers.base import NextStep
from analyzers.checkpoints import Alignment, Checkpoint, Tensor, Unmatched, account_notes, layout_notes, quoted
from analyzers.coverage import unseen
from analyzers.formatting import plural, share
from analyzers.numerics import PairCounts
from analyzers.records import Interval
from analyzers.update_sparsity.adapters import sentences as adapters
from analyzers.update_sparsity.statistics import Pair, weigh

if TYPE_CHECKING:
    from analyzers.update_sparsity.report import SparsityReport

# In multiples of the two bytes of a bf16 value: a changed value with an index of 4 bytes, and one bit per value that marks the changed
_LISTED, _MARKED = 3, 1 / 16
# Names that a note gives of each kind.
_NAMED = 3


def headline(report: "SparsityReport") -> str:
    """Return the statement, and how far it reaches."""
    reach = report.reach()
    if report.adapter is not None:
        return f"{adapters.statement(report.adapter, report.blocks is not None)} {reach}".rstrip()
    if not reach:
        return report.statement
    # statements are made before it is known how much was compared
    said = report.statement.replace(" of all weights are ", " of the weights compared are ")
    return f"{said} {reach}"


def next_step(report: "SparsityReport") -> NextStep:
    """Advise, and link to the passport of the last model."""
    return NextStep(_advice(report), "dtype", report.tuned[-1].ref)


def _advice(report: "SparsityReport") -> str:
    """Say what the share of changed weights means for training or for storing the update."""
    if report.adapter is not None:
        return adapters.advice(report.adapter)
    changed = None if report.sparsity is None else 1 - report.sparsity
    if changed is None:
        return "Compare two checkpoints of the same architecture."
    compared, about = "" if report.whole else " compared", "about " if report.interval else ""
    if changed == 0 and report.unmatched.moved_layers:
        return "Look at the order of the layers: their values are the base's, under other numbers, which makes another model."
    if changed == 0 and not report.swallowed.count and compared:
        return "Compare the other weights before you say that nothing was trained: those compared are the same on both sides."
    if changed == 0 and not report.swallowed.count and report.interval:
        bounded = f" (differences: {unseen(report.blocks, 1 - report.interval.low)})" if report.blocks else ""
        return f"Use exact mode before you say that nothing was trained{bounded}."
    if changed == 0 and not report.swallowed.count:
        return "If one was to be trained from the other, check that the right checkpoint was uploaded: all values are the same."
    if report.swallowed.meaningful and report.swallowed.count:
        lost = share(report.swallowed.share)
        return f"Keep fp32 master weights: {about}{lost} of the weights{compared} changed only below bf16 resolution."
    with_what, cost = min(("their indices", _LISTED * changed), ("a bitmap", changed + _MARKED), key=lambda each: each[1])
    if cost < 1:
        of = "a bf16 checkpoint" if report.whole else "the weights compared, in bf16"
        return f"Ship the update alone: changed values with {with_what} take about {share(cost)} of {of}."
    return f"Ship the whole checkpoint: with {about}{share(changed)} of the weights{compared} changed, the changes alone take no less."


def statement(same: bool, counts: PairCounts, sparsity: float | None, interval: Interval | None, blocks: int | None = None) -> str:
    """Write the headline on what was compared.

    same: whether both sides have the same commit; counts: of all pairs that were read; interval, blocks: of a sample.
    """
    if sparsity is None:
        return "No values could be compared."
    if same:
        return "Both sides are the same checkpoint, file for file: nothing changed."
    if interval is not None and blocks is not None:
        return _sampled(counts, interval, blocks)
    if counts.values == 1:
        return f"The one weight compared {_one(counts)}."
    n = f"{counts.values:,}"
    if counts.differ == 0:
        return f"None of the {n} weights compared differ."
    if counts.changed == 0:
        return (
            f"None of the {n} weights changed in bf16, though {share(counts.differ / counts.values)} differ as stored: "
            "every update is below bf16 resolution."
        )
    if counts.changed == counts.values:
        return f"Every one of the {n} weights changed in bf16."
    return f"{share(sparsity)} of the weights are unchanged in bf16, {share(1 - sparsity)} differ."


def _one(counts: PairCounts) -> str:
    """Describe the outcome for the only value compared."""
    if counts.changed:
        return "changed in bf16"
    return "changed as stored, below bf16 resolution" if counts.differ else "does not differ"


def _sampled(counts: PairCounts, interval: Interval, blocks: int) -> str:
    n = f"{counts.values:,}"
    if counts.changed == 0:
        seen = "differ" if counts.differ == 0 else "changed in bf16"
        read = f"The one weight read {_one(counts)}" if counts.values == 1 else f"None of the {n} weights read {seen}"
        return f"{read}: {unseen(blocks, 1 - interval.low)}. At least {share(interval.low)} of all weights are unchanged in bf16."
    if counts.changed == counts.values:
        read = "The one weight read" if counts.values == 1 else f"Every one of the {n} weights read"
        return f"{read} changed in bf16: with 95% confidence at most {share(interval.high)} of all weights are unchanged in bf16."
    return (
        f"About {share(interval.estimate)} of the weights are unchanged in bf16 (95% interval: {share(interval.low)} to "
        f"{share(interval.high)}), about {share(1 - interval.estimate)} differ."
    )


def notes(
    sides: Sequence[Checkpoint],
    names: Sequence[str],
    alignment: Alignment,
    pairs: Sequence[Pair],
    counts: PairCounts,
    eta: float,
    exact: bool,
    aggregated: bool,
    left_out: int,
) -> Iterator[str]:
    """Yield the limits of the answer, most important first. left_out: requested matrices that were not decomposed."""
    if not exact:
        yield (
            "Quick mode read a sample, at the same offsets on every side: counts, the smallest and the largest update describe the sample; "
            "shares, means, percentiles and energy are estimates with 95% intervals, except where a few blocks carry them. Standard "
            "deviations and norms are estimates without an interval; where a few rows hold most of an update, norms of layers are mostly "
            "too small. The spread over tensors, changed rows and columns need exact mode."
        )
    yield from unmatched_notes(alignment.unmatched[-1])
    for name, found in zip(names[1:-1], alignment.unmatched[:-1], strict=True):
        number = len(found.missing) + len(found.misshapen) + len(found.integers)
        if number:
            lost = plural(number, "tensor of the base has", "tensors of the base have")
            yield f"{name}: {lost} no counterpart in it, so its shares cover fewer weights."
        shorter = sum(each.tuned.shape[0] < each.base.shape[0] for each in found.resized)
        if shorter:
            lost = plural(shorter, "tensor has", "tensors have")
            yield f"{name}: {lost} fewer rows in it than in the base, so its shares cover fewer weights."
    yield from _dtype_notes(pairs, eta)
    if counts.nonfinite:
        have = plural(counts.nonfinite, "pair has", "pairs have")
        yield f"{have} a NaN or an infinity on either side: such pairs are counted as changed or unchanged, and excluded from magnitudes."
    if counts.values > counts.nonfinite and weigh([(0, counts)], [1]).update_norm is None:
        yield (
            "The update's norm is beyond the range of float64 (1.8e308), of some tensors or of all together: such norms and relative "
            "norms are left out, and a single update beyond that range counts as the largest float64."
        )
    if left_out:
        yield (
            f"Singular values and subspaces: {plural(left_out, 'more matrix was', 'more matrices were')} not decomposed (at most "
            f"{limits.SPECTRAL_MATRICES:,}, spread over layers and roles, of at most {limits.SPECTRAL_ELEMENTS:,} elements and "
            f"{limits.SPECTRAL_SIDE:,} on the shorter side)."
        )
    if aggregated:
        yield f"More than {limits.REPORT_TENSORS:,} tensors: rows are aggregated by layer, role and dtypes."
    for name, side in zip(names, sides, strict=True):
        yield from (f"{name}: {note.text}" for note in account_notes(side, side.tensors))


def _dtype_notes(pairs: Sequence[Pair], eta: float) -> Iterator[str]:
    kinds = sorted({(pair.base.dtype, pair.tuned.dtype) for pair in pairs if pair.base.dtype != pair.tuned.dtype})
    if kinds:
        shown = ", ".join(f"{before} with {after}" for before, after in kinds[:4])
        yield (
            f"Stored in different dtypes ({shown}): every value is rounded to bf16 before it is compared, and what differs only as stored "
            "counts conversions, not updates lost to bf16 rounding."
        )
    stored = {pair.base.counted_as for pair in pairs} | {pair.tuned.counted_as for pair in pairs}
    if stored != {"BF16"}:
        yield (
            "Changed and probe measure different things here, since not all values are stored in bf16: an update of 5e-4 of a weight is "
            f"below the probe's threshold (eta {eta:g}), yet can change its rounding to bf16."
        )
    elif eta >= 2**-8:
        yield f"With eta {eta:g}, at least 2^-8, the probe misses single bf16 ULPs, which count as changed."


def unmatched_notes(found: Unmatched) -> Iterator[str]:
    """Yield one sentence for each kind of tensor that was not compared, or not one to one."""
    for what, tensors in (("only the base has", found.missing), ("only the tuned checkpoint has", found.extra)):
        if tensors:
            elements = sum(tensor.elements for tensor in tensors)
            yield f"Not compared: {plural(len(tensors), 'tensor')} that {what}, {plural(elements, 'parameter')} ({_names(tensors)})."
    if found.misshapen:
        turned = sum(each.transposed for each in found.misshapen)
        yield (
            f"Not compared: {plural(len(found.misshapen), 'tensor')} of another shape ({_names([each.base for each in found.misshapen])})"
            + (f", {turned:,} of them transposed." if turned else ".")
        )
    if found.integers:
        kinds = ", ".join(sorted({tensor.dtype for tensor in found.integers}))
        hold = plural(len(found.integers), "tensor that holds", "tensors that hold")
        yield f"Not compared: {hold} no plain floats ({kinds}; {_names(found.integers)})."
    yield from (note.text for note in layout_notes(found, "the base", "the tuned checkpoint"))
    if found.renamed:
        first = found.renamed[0]
        others = ", for one" if len(found.renamed) > 1 else ""
        yield (
            f"Compared under different names: {plural(len(found.renamed), 'tensor')}, {quoted(first.base.name)} with "
            f"{quoted(first.tuned.name)}{others}."
        )
    for each in found.resized[:_NAMED]:
        yield (
            f"{quoted(each.base.name)} has {plural(each.base.shape[0], 'row')} in the base and {each.tuned.shape[0]:,} in the tuned "
            f"checkpoint: {'the first was' if each.rows == 1 else f'the first {each.rows:,} were'} compared."
        )
    if found.tied:
        repeat = plural(len(found.tied), "tensor that repeats", "tensors that repeat")
        yield f"Counted once: {repeat} the input embedding ({_names(found.tied)})."


def _names(tensors: Sequence[Tensor]) -> str:
    return ", ".join(quoted(tensor.name) for tensor in tensors[:_NAMED]) + (", ..." if len(tensors) > _NAMED else "")
