"""Gives the evidence for a verdict, each piece about one named candidate or combination; and what changes how the answer is to be read."""

from collections.abc import Iterator, Sequence
from typing import Literal

from analyzers.checkpoints import Checkpoint, Unmatched, account_notes, layout_notes
from analyzers.comparison.parents.facts import Facts, beyond_chance, proven
from analyzers.comparison.parents.likeness import RELATED
from analyzers.comparison.parents.merge import proves_more
from analyzers.comparison.parents.report import Candidate, Evidence, Fit, Verdict, distinct_names
from analyzers.comparison.parents.words import REASONS, WORDS, recipe
from analyzers.core.notes import Note, Value

_KINDS = ("proof", "measurement", "inference")
# Share of the squared distance of a single value from which on it says little of the others.
_DOMINATES = 0.5
# Least condition number of parents that may be steps of one training.
_SIMILAR = 10


def evidence(facts: Facts, verdict: Verdict) -> list[Evidence]:
    """Return the evidence for a verdict: proofs, measurements, then inferences."""
    best = facts.candidates[0]
    rows = [*_equality(facts, best), *_exactness(facts)]
    if verdict in ("derived", "merge", "quantized-copy"):
        rows += _further(facts, best, verdict)
    if verdict in ("unrelated", "undecided"):
        rows = [each.model_copy(update={"kind": "measurement"}) for each in rows]
    return sorted(rows, key=lambda each: _KINDS.index(each.kind))


def _equality(facts: Facts, best: Candidate) -> Iterator[Evidence]:
    if facts.through is not None:
        yield _evidence("cast", "proof", source=best.ref, values=facts.values, lost=facts.lost)
    for each in facts.candidates[:3]:
        if each.telling and (proven(each) or (each is best and not facts.parents[1:])):
            equal, chance = each.telling_equal, each.telling_by_chance
            yield _evidence("equal", _proof(proven(each)), source=each.ref, share=equal, values=each.telling, chance=chance)


def _exactness(facts: Facts) -> Iterator[Evidence]:
    fit = facts.fit
    if fit is None or fit.exact_share is None or not facts.parents:
        return
    if len(facts.parents) == 1 and (fit.exact_weights[0] == 1 or fit.exact_share < 0.5):
        return
    values: dict[str, Value] = {"share": fit.exact_share, "values": fit.exact_values, "chance": fit.exact_by_chance}
    values |= {"alone": fit.exact_alone, "recipe": recipe(facts.parents)}
    code = "exact-by-layer" if fit.exact_per_layer else "exact"
    yield _evidence(code, _proof(proves(fit, len(facts.parents))), **values)


def proves(fit: Fit, parents: int) -> bool:
    """Return whether exact values prove the combination of this many parents, by more than chance and a single candidate explain."""
    exact = fit.exact_share or 0.0
    return beyond_chance(exact, fit.exact_by_chance) and (parents < 2 or proves_more(exact, fit.exact_alone or 0.0))


def _further(facts: Facts, best: Candidate, verdict: Verdict) -> Iterator[Evidence]:
    if facts.steps is not None and verdict == "quantized-copy":
        yield _evidence("steps", "measurement", inverted=facts.steps[0], merged=facts.steps[1])
    if facts.unlike and (best.agreement or 0) > 2 * RELATED:
        yield _evidence("unlike", "inference", roles=tuple(facts.unlike))


def _evidence(code: str, kind: Literal["proof", "measurement", "inference"], /, **values: Value) -> Evidence:
    return Evidence(kind=kind, code=code, values=values, text=REASONS.text(code, values))


def _proof(proves: bool) -> Literal["proof", "measurement"]:
    return "proof" if proves else "measurement"


def notes(facts: Facts, verdict: Verdict, unseen: tuple[int, float] | None) -> Iterator[Note]:
    """Yield what changes how the answer is to be read. unseen: the blocks of a sample, and the share of all that may be of another kind."""
    fit = facts.fit
    if unseen is not None and facts.through is not None:
        yield WORDS.note("unseen", blocks=unseen[0], unseen=unseen[1])
    model, source, *_ = distinct_names([facts.model, *facts.candidates])
    for code, values in zip(("non-finite", "source-non-finite"), facts.broken, strict=True):
        if values:
            yield WORDS.note(code, model=model, source=source, values=values)
    if facts.spike[1] > _DOMINATES and facts.lost > 1:
        yield WORDS.note("spike", source=source, largest=facts.spike[0], carried=facts.spike[1])
    if verdict in ("unrelated", "undecided"):
        yield WORDS.note("positions")
    if verdict == "merge" and fit is not None:
        yield from _of_merge(facts, fit)
    if empty := tuple(row.ref for row in facts.candidates if not row.compared):
        yield WORDS.note("not-compared", names=empty)


def _of_merge(facts: Facts, fit: Fit) -> Iterator[Note]:
    if fit.weights_by != "exact-values" and (fit.condition is None or fit.condition >= _SIMILAR):
        yield WORDS.note("one-run")
    if fit.exceptions:
        yield WORDS.note("exceptions", layers=tuple("outside" if layer is None else f"{layer}" for layer in fit.exceptions))
    if facts.constant:
        yield WORDS.note("one-value", tensors=len(facts.constant), names=tuple(facts.constant[:3]))
    for parent in fit.parents:
        if parent.alike:
            yield WORDS.note("not-told-apart", names=(parent.ref, *parent.alike))


def reading_notes(sides: Sequence[Checkpoint], unmatched: Sequence[tuple[str, Unmatched]], fitted: bool) -> Iterator[Note]:
    """Yield what readers of the checkpoints and the matching of tensors remark.

    sides: the model and all candidates; unmatched: of each candidate compared, its name and what could not simply be compared.
    """
    for ref, found in unmatched:
        yield from layout_notes(found, sides[0].ref, ref)
    if fitted and len(unmatched) > 1 and any(found.resized for _, found in unmatched):
        yield WORDS.note("joint-rows")
    for side in sides:
        for note in account_notes(side, side.tensors):
            yield note.about(side.ref)
