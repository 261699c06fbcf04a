"""Tells which bits prove a verdict, and what changes how the answer is to be read."""

from collections.abc import Iterator
from typing import Literal

from analyzers.checkpoints import account_notes, layout_notes
from analyzers.comparison.parents.exact_values import proves
from analyzers.comparison.parents.explain import Explanation
from analyzers.comparison.parents.report import SCALED, Fit, Verdict, distinct_names
from analyzers.comparison.parents.words import WORDS
from analyzers.core.notes import Note

# Least condition number of parents that may be steps of one training.
_SIMILAR = 10


def proof(facts: Explanation, verdict: Verdict, answer: Note) -> Literal["cast", "exact", "equal"] | None:
    """Return which bits prove the verdict, if any do."""
    if verdict in ("unrelated", "undecided") or answer.code == "few-values":
        return None
    if facts.sums.cast is not None:
        return "cast"
    fit, parents = facts.fit, facts.parents
    if fit is not None and fit.exact_share is not None and (verdict == "merge" or (len(parents) == 1 and parents[0].weight != 1)):
        enough = fit.exact_share if len(parents) > 1 or fit.exact_share >= 0.5 else 0.0
        if proves(enough, fit.exact_by_chance or 0.0, fit.exact_alone or 0.0, len(parents)):
            return "exact"
    return "equal" if any(row.proven for row in facts.candidates[:3]) else None


def notes(facts: Explanation, verdict: Verdict) -> Iterator[Note]:
    """Yield what changes how the answer is to be read."""
    fit, unseen = facts.fit, facts.table.unseen()
    if unseen is not None and facts.sums.cast is not None:
        yield WORDS.note("unseen", blocks=facts.table.unread_blocks(), unseen=unseen)
    model, source, *_ = distinct_names([facts.model, *facts.candidates])
    for code, values in (("non-finite", int(facts.sums["broken_x"])), ("source-non-finite", int(facts.sums["broken_p"]))):
        if values:
            yield WORDS.note(code, model=model, source=source, values=values)
    if verdict in ("unrelated", "undecided"):
        yield WORDS.note("positions")
    if verdict == "quantized-copy" and facts.quantized is not None and facts.quantized.calibrated:
        yield WORDS.note("calibrated")
        if scaled := sum(row.note is not None and row.note.code in SCALED for row in facts.conversion):
            yield WORDS.note("scaled-channels", tensors=scaled)
    if verdict == "quantized-copy" and facts.quantized is not None and (lacks := facts.quantized.lacks):
        yield WORDS.note("lacks", model=model, source=source, tensors=len(lacks), names=lacks[:3])
    if verdict == "merge" and fit is not None:
        yield from _of_merge(fit)
    if empty := tuple(row.ref for row in facts.candidates if not row.compared):
        yield WORDS.note("not-compared", names=empty)
    sides, unmatched, x = facts.found.sides, facts.found.alignment.unmatched, facts.x
    compared = [side for side in facts.others if 0 in (x, side)]
    for side in compared:
        yield from layout_notes(unmatched[max(x, side) - 1], sides[0].ref, sides[max(x, side)].ref)
    if facts.fitted is not None and len(compared) > 1 and any(unmatched[side - 1].resized for side in compared):
        yield WORDS.note("joint-rows")
    for each in sides:
        yield from (note.about(each.ref) for note in account_notes(each, each.tensors))


def _of_merge(fit: Fit) -> Iterator[Note]:
    if fit.weights_by != "exact-values" and (fit.condition is None or fit.condition >= _SIMILAR):
        yield WORDS.note("one-run")
    for parent in fit.parents:
        if parent.alike:
            yield WORDS.note("not-told-apart", names=(parent.ref, *parent.alike))
