"""Decides what a comparison says: how much a verdict says, the direction, the answer, the advice and the notes on other models."""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from analyzers.comparison.compare.report import Copy
from analyzers.comparison.compare.words import WORDS
from analyzers.comparison.parents import ParentsReport
from analyzers.comparison.parents.explain import Explanation
from analyzers.comparison.parents.report import distinct_names
from analyzers.comparison.parents.verdict import judge
from analyzers.comparison.sparsity import SparsityReport
from analyzers.core.coverage import Coverage
from analyzers.core.notes import Advice, Note, Value
from analyzers.core.records import Interval

# Rank of stacks and exact merges, whose direction the weights show; and the residual, in multiples of rounding, of other complete merges.
_SHOWN, _ROUNDED = 3, 2.0
# Answers that training does not explain, so that the changes are not an update to ship.
_NO_UPDATE = ("damaged", "replaced", "scaled", "reordered", "quantized-trained", "siblings")


def says(report: ParentsReport) -> tuple[int, float]:
    """Return how much a verdict says, so that the larger one has the direction: first its kind, then the share or size that supports it."""
    verdict, fit = report.verdict, report.fit
    if verdict == "merge" and fit is not None:
        adds = all(each.weight >= 0 for each in fit.parents)  # else it is what a merge leaves once the others are taken away
        if fit.weights_by == "exact-values":
            return _SHOWN - (not adds), fit.exact_share or 0.0
        explained = adds and (fit.residual or 1.0) <= _ROUNDED * (fit.rounding or 0.0)
        return (_SHOWN - 1 if explained else 1), 0.0
    if verdict == "stack":  # of two models made of the same layers, the larger one repeats some
        return _SHOWN, float(report.checkpoint.parameters)
    if verdict == "derived" and report.candidates[0].pruned:  # zeros tell which one was pruned
        return _SHOWN - 1, 0.0
    return {"same-weights": 5, "quantized-copy": 4, "merge": 1, "derived": 1}.get(verdict, 0), 0.0


def direction(report: ParentsReport, last: bool, named: bool) -> Literal["shown", "assumed"] | None:
    """Return whether weights, or references, show which model came first; None if nothing does.

    last: it explains the last of several; named: its reference names its base.
    """
    if named and report.verdict == "derived":
        return "shown"
    if report.verdict in ("same-weights", "unrelated", "undecided") or report.answer.code == "siblings":
        return None
    sources = [(row.ref, row.source) for row in report.layer_map]
    stacked = report.verdict == "stack" and (len(report.parents) > 1 or len(set(sources)) < len(sources))
    merged = report.verdict == "merge" and says(report)[0] > 1
    told = report.verdict == "quantized-copy" or (report.verdict == "derived" and report.candidates[0].pruned)
    return "shown" if stacked or merged or told else "assumed" if last else None


def answer(parents: ParentsReport, sparsity: SparsityReport | None) -> Note:
    """Return the answer of parents, with the share of the weights that changed where that says more than a distance."""
    code = parents.answer.code
    if sparsity is not None and sparsity.adapter is not None:
        return sparsity.answer
    if sparsity is None or sparsity.update_fraction is None or code not in ("derived", "similar"):
        return parents.answer
    fraction, of_sparsity = sparsity.update_fraction, sparsity.interval
    changed: float | Interval = fraction
    if of_sparsity is not None:
        changed = Interval(estimate=fraction, low=1 - of_sparsity.high, high=1 - of_sparsity.low)
    base, *_, last = distinct_names([sparsity.base, *sparsity.tuned])
    values = parents.answer.values | {"changed": changed, "values": sparsity.values_compared, "base": base, "last": last}
    return WORDS.note("pair" if len(parents.candidates) == 1 else code, **values)


def best_copies(parents: ParentsReport, copies: Sequence[Copy]) -> Note:
    """Return the answer on several quantized copies, the nearest first: that one, and the one nearest for its size."""
    sizes = {copy.for_its_size: copy for copy in reversed(copies) if copy.for_its_size is not None}
    if not sizes:
        return parents.answer
    nearest, best = copies[0], sizes[min(sizes)]
    values: dict[str, Value] = {
        "source": parents.candidates[0].ref, "copies": sum(copy.why is None for copy in copies), "nearest": nearest.ref,
        "error": nearest.error, "best": best.ref, "bits": best.bits_per_weight, "of_best": best.error,
    }  # fmt: skip
    return WORDS.note("nearest-copy" if best is nearest else "ranked-copies", **values)


def advice(parents: ParentsReport, sparsity: SparsityReport | None) -> Advice:
    """Return the advice of the report that is closer to the question."""
    if parents.verdict in ("unrelated", "undecided"):
        return WORDS.advice("other-models", "dtype", parents.checkpoint.ref, model=parents.checkpoint.ref)
    if sparsity is None or parents.verdict != "derived" or parents.answer.code in _NO_UPDATE:
        return parents.advice
    return sparsity.advice


def of_others(parents: ParentsReport, copies: Sequence[Copy] = ()) -> Iterator[Note]:
    """Yield what the model is to those that the verdict does not name. copies: that are ranked."""
    named = {*parents.parents, *(copy.ref for copy in copies if copy.why is None)}
    others = [row for row in parents.candidates if row.ref not in named and row.compared]
    if parents.verdict == "unrelated" and len(others) > 1:
        yield WORDS.note("others-not-asked", model=parents.checkpoint.ref)
    if parents.verdict in ("unrelated", "undecided"):
        return
    if parents.verdict == "quantized-copy" and others:
        yield WORDS.note("not-copies", source=parents.candidates[0].ref, names=tuple(row.ref for row in others))
        return
    for code, akin in (("related-too", True), ("no-relation", False)):
        if names := tuple(row.ref for row in others if row.related == akin):
            yield WORDS.note(code, names=names)


def coverage(parts: Sequence[ParentsReport | SparsityReport]) -> tuple[Coverage, ...]:
    """Return the coverage of each checkpoint by these reports, the smaller one where both have it."""
    smallest: dict[str, Coverage] = {}
    for each in (account for part in parts for account in part.accounts()):
        known = smallest.get(each.ref)
        if known is None or (each.share is not None and (known.share is None or each.share < known.share)):
            smallest[each.ref] = each
    return tuple(smallest.values())


def ranked(sides: list[int], explain: Callable[[int], Explanation]) -> tuple[int | None, tuple[Copy, ...]]:
    """Return the nearest of several quantized copies of one model, and a row for each of them, the nearest first, then for the others.

    sides: those with quantized tensors. Returns no rows, and None if no two sides are quantized or none is a copy, if fewer than two are
    copies of the same other side.
    """
    if len(sides) < 2:
        return None, ()
    facts = {side: explain(side) for side in sides}
    answers = {side: judge(facts[side]) for side in sides}
    sources = [facts[side].best for side, (verdict, _) in answers.items() if verdict == "quantized-copy"]
    source = max(sources, key=sources.count, default=-1)
    copies = [side for side in sides if answers[side][0] == "quantized-copy" and facts[side].best == source]
    if len(copies) < 2:
        return next(iter(copies), None), ()
    error = {side: copy.distance() or 0.0 for side in copies if (copy := facts[side].copy) is not None}
    rows = {side: _row(facts[side], error.get(side), answers[side][1]) for side in sides}
    sizes = {side: error[side] * 2.0 ** rows[side].bits_per_weight for side in copies}
    least = min(sizes.values()) or 1.0
    order = sorted(copies, key=error.__getitem__)
    nearest = [rows[side].model_copy(update={"for_its_size": sizes[side] / least}) for side in order]
    return order[0], (*nearest, *(rows[side] for side in sides if side not in copies))


def _row(facts: Explanation, error: float | None, answer: Note) -> Copy:
    """Return the row of a quantized model. error: of a copy, None for any other model, which has no figures; answer: what that is."""
    copy, model = facts.quantized, facts.model
    row = Copy(
        ref=model.ref,
        method=copy.method if copy is not None else None,
        bytes=model.bytes,
        bits_per_weight=8 * model.bytes / max(1, model.parameters),
    )
    if copy is None or error is None:
        return row.model_copy(update={"why": answer})
    figures = {"within_half_step": copy.within_half_step, "ratio": copy.ratio, "not_source": len(copy.not_source)}
    return row.model_copy(update=figures | {"error": error})
