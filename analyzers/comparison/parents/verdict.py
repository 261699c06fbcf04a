"""Derives the verdict from the facts, as a code with values, with its proof, the advice that follows and the notes."""

import re
from collections.abc import Iterator, Sequence
from typing import Literal

from analyzers.checkpoints import account_notes, layout_notes
from analyzers.comparison.parents.exact_values import proves
from analyzers.comparison.parents.explain import Explanation
from analyzers.comparison.parents.report import (
    AS_STORED,
    BEYOND_CHANCE,
    FAITHFUL,
    FEWEST,
    RELATED,
    SCALED,
    Candidate,
    Conversion,
    Fit,
    QuantizedCopy,
    Verdict,
    distinct_names,
    is_copy,
    lost_tensors,
)
from analyzers.comparison.parents.words import WORDS, recipe
from analyzers.core.notes import Advice, Note, Value
from analyzers.core.report import needs_the_whole

_NAMED = 3  # names of tensors from which an answer takes: of three or more, the first one
# Error of a calibrated copy, in units of that of rounding, up to which nothing but rounding explains it.
_ROUNDING = 1.02
# Classes of tensors that make two models different, beside an adapter's.
_DIFFERENT = ("unmatched", "undecoded", "excluded", "empty")

# Models of transformers whose queries and keys llama.cpp reorders, and their names in its files.
_REORDERED, _OF_GGUF = frozenset({"llama", "mistral", "mixtral"}), re.compile(r"blk\.[0-9]+\.attn_[qk]\.weight")
# Least condition number of parents that may be steps of one training.
_SIMILAR = 10


def judge(facts: Explanation) -> tuple[Verdict, Note]:
    """Return the verdict, and the answer with the figures that carry it."""
    best = facts.candidates[0]
    if best.cosine is None or best.cosine_null is None or best.compared < FEWEST:
        return "undecided", facts.answer("few-values", values=best.compared)
    return _verdict(facts, best)


def alike(facts: Explanation) -> list[Candidate]:
    """Return the best candidate, and those that the fit cannot tell apart from it, the closest first."""
    best = facts.candidates[0]
    groups = [{row.ref, *row.alike} for row in (facts.fit.parents if facts.fit else ())]
    group = next((refs for refs in groups if best.ref in refs), set[str]())
    return [best, *(row for row in facts.candidates[1:] if row.ref in group)]


def named_candidates(verdict: Verdict, facts: Explanation) -> tuple[str, ...]:
    """Return the candidates that a verdict other than a stack names: of a derived model all that it may come from, the closest first."""
    if verdict in ("unrelated", "undecided"):
        return ()
    if verdict == "merge":
        return tuple(each.ref for each in facts.parents)
    return tuple(row.ref for row in (alike(facts) if verdict == "derived" else facts.candidates[:1]))


def _verdict(facts: Explanation, best: Candidate) -> tuple[Verdict, Note]:
    if facts.sums.cast is not None and not facts.moved and needs_the_whole("same-weights", facts.coverage, "derived") == "same-weights":
        return "same-weights", _same(facts)
    if facts.copy is not None and 2 * facts.copy.share > 1:
        changed = changed_beside(facts)
        return ("derived", _trained(facts, changed)) if changed else ("quantized-copy", _copy(facts, facts.quantized))
    stack = facts.stack
    if stack is not None and stack.tensors and not facts.moved:
        return "stack", facts.answer("stack-tensors", tensors=len(stack.tensors), sources=facts.refs(stack.sides))
    if stack is not None and stack.parents and (stack.exact or (best.related and not _exact_merge(facts))):
        layers = sum(layer is not None for layer in stack.parents)
        return "stack", facts.answer("stack" if stack.exact else "stack-fitted", layers=layers, sources=facts.refs(stack.sides))
    if not best.related and not best.proven:
        return _not_related(facts, best)
    if facts.sums.cast is not None:
        return "stack" if facts.moved and facts.coverage[0].whole else "derived", _equal_in_part(facts, best)
    if facts.akin[1] <= 0.5 and facts.layers < 0.5 and len(facts.parents) < 2 and not _of_the_source(facts):
        return "undecided", facts.answer("few-related", matrices=facts.akin[0], share=facts.akin[1])
    if facts.of_siblings:
        return "derived", facts.answer("siblings", distance=best.distance)
    if len(facts.parents) > 1 and not (facts.fitted is not None and facts.fitted.is_start):
        return "merge", _merge(facts)
    if facts.quantized is not None and facts.quantized.ratio is not None:
        return "derived", facts.answer("quantized-derived", error=facts.quantized.error, ratio=facts.quantized.ratio)
    if facts.stepwise and (damage := _damage(facts)):
        return "derived", damage
    if facts.stepwise and (best.cosine or 0) > 0.9:
        return "quantized-copy", facts.answer("quantized-steps", distance=best.distance)
    return "derived", _derivation(facts, best)


def _copy(facts: Explanation, copy: QuantizedCopy | None) -> Note:
    assert copy is not None
    figures: dict[str, Value] = {"error": copy.error, "ratio": copy.ratio}
    if odd := copy.not_source:
        return facts.answer("quantized-damaged", methods=copy.methods, odd=len(odd), names=odd[:_NAMED])
    if copy.ratio is None:
        return facts.answer("quantized-no-grid", methods=copy.methods, error=copy.error)
    figures |= {"read": copy.tensors_read, "tensors": copy.tensors_stored}
    code = "quantized-or-trained" if copy.calibrated and copy.ratio > _ROUNDING else "quantized"
    return facts.answer(code, methods=copy.methods, **figures)


def _trained(facts: Explanation, changed: tuple[str, ...]) -> Note:
    copy = facts.quantized
    assert copy is not None
    values: dict[str, Value] = {"methods": copy.methods, "error": copy.error, "ratio": copy.ratio}
    return facts.answer("quantized-trained", changed=len(changed), names=changed[:_NAMED], **values)


def changed_beside(facts: Explanation) -> tuple[str, ...]:
    """Return the tensors beside the quantized ones of a copy that changed, as training changes them, if nothing else is not the source's.

    Only where errors are beyond rounding: else the quantized ones are the source's.
    """
    copy = facts.quantized
    if copy is None or not copy.calibrated:
        return ()
    quantized = {name for row in copy.tensors for name in (row.name, *row.source)}
    changed = tuple(row.name for row in facts.conversion if row.relation == "changed" and row.name not in quantized and row.note is None)
    return changed if set(copy.not_source) == set(changed) else ()


def _same(facts: Explanation) -> Note:
    if not facts.lost:
        return facts.answer("same-weights", values=facts.values)
    return facts.answer("same-rounded", values=facts.values, lost=facts.lost, formats=formats(facts.conversion))


def formats(rows: Sequence[Conversion]) -> tuple[str, ...]:
    """Return the formats to which tensors, or their sources, were rounded."""
    of_sources = {str(row.note.values["to"]) for row in rows if row.note is not None and row.note.code == "apart"}
    return tuple(sorted(of_sources | {row.to for row in rows if row.relation == "rounded" and row.to}))


def _of_the_source(facts: Explanation) -> bool:
    """Return whether most values are in tensors that hold the source's in some form."""
    explained = sum(row.values for row in facts.conversion if row.relation in (*FAITHFUL, "affine", "reordered", "truncated"))
    return 2 * explained > facts.values


def _not_related(facts: Explanation, best: Candidate) -> tuple[Verdict, Note]:
    if _of_the_source(facts) and (damage := _damage(facts)):
        return "derived", damage
    chance = BEYOND_CHANCE * (best.agreement_null or 0)
    if (best.shared or 0) >= max(RELATED, chance):
        return "undecided", facts.answer("common-values")
    if (best.agreement or 0) >= max(RELATED / 2, chance):
        return "undecided", facts.answer("slightly-similar", agreement=best.agreement)
    if best.agreement is None or facts.sums.cast is not None:
        return "undecided", facts.answer("common-values")
    return "unrelated", facts.answer("unrelated", sources=tuple(row.ref for row in facts.candidates if row.compared))


def _exact_merge(facts: Explanation) -> bool:
    """Return whether values equal a combination of several parents with the same weights in most layers."""
    return facts.fit is not None and len(facts.parents) > 1 and facts.fit.weights_by == "exact-values"


def _equal_in_part(facts: Explanation, best: Candidate) -> Note:
    """Return the answer if everything compared is equal, but it is not all of both, or not in the same layers."""
    model, other = facts.coverage
    rank = next((each for each in facts.adapters if each), 0)
    if rank and not any(kind in side.classes for side in facts.coverage for kind in _DIFFERENT):
        bearer, bare = (facts.model.ref, best.ref) if facts.adapters[0] else (best.ref, facts.model.ref)
        return facts.answer("adapter-beside", bearer=bearer, other=bare, rank=rank, values=facts.values)
    if facts.moved and model.whole:
        return facts.answer("relayered", values=facts.values, layers=len(facts.moved))
    return facts.answer("equal-part", values=facts.values, share=model.share, other=other.share)


def _merge(facts: Explanation) -> Note:
    fit, terms = facts.fit, recipe(facts.parents)
    assert fit is not None
    at_rounding = facts.fitted is not None and facts.fitted.at_rounding
    if fit.weights_by == "exact-values":
        return facts.answer("merge-exact", recipe=terms, exact=fit.exact_share, values=fit.exact_values, all=facts.model.parameters)
    return facts.answer("merge", recipe=terms) if at_rounding else facts.answer("merge-partly", recipe=terms, residual=fit.residual)


def _damage(facts: Explanation) -> Note | None:
    """Return the answer if tensors hold other values than their source, while others are the candidate's; None if none does."""
    rows = [row for row in facts.conversion if row.relation != "unmatched"]
    kept, odd = sum(row.relation in FAITHFUL for row in rows), lost_tensors(rows)
    if not odd:
        return None
    names = tuple(row.name for row in odd[:_NAMED])
    kinds = {row.relation for row in odd}
    if len(odd) + kept == len(rows) and kinds in ({"reordered"}, {"affine"}):
        return facts.answer("scaled" if "affine" in kinds else "reordered", tensors=len(odd), names=names)
    if kept < 2:
        return facts.answer("replaced", odd=len(odd), names=names)
    return facts.answer("damaged", kept=kept, tensors=len(rows), odd=len(odd), names=names)


def _derivation(facts: Explanation, best: Candidate) -> Note:
    lost = any(row.relation in ("zero", "truncated") for row in facts.conversion)  # whole tensors and rows are not what pruning chooses
    if best.pruned and not lost:
        return facts.answer("pruned", zeroed=best.zeroed, equal=best.equal_share)
    if best.unpruned:
        return facts.answer("unpruned", zeroed=best.filled, equal=best.equal_share)
    if damage := _damage(facts):
        return damage
    if facts.moved:
        return facts.answer("moved", layers=len(facts.moved))
    similar = alike(facts)
    if len(similar) > 1:
        return facts.answer("similar", sources=tuple(row.ref for row in similar), distance=best.distance)
    if not best.distance:
        return facts.answer("derived-beside-matrices", values=best.compared)
    return facts.answer("derived", distance=best.distance)


def advise(verdict: Verdict, parents: tuple[str, ...], facts: Explanation, sampled: bool) -> Advice:
    """Return what to do after the verdict. parents: those that it names; sampled: whether a part of the values was read."""
    if verdict == "same-weights" and facts.sums.cast == "cast_apart":
        return WORDS.advice("use-unrounded", "dtype", facts.model.ref)
    if verdict == "same-weights" and facts.lost:
        return WORDS.advice("keep-unrounded", "dtype", facts.model.ref, formats=formats(facts.conversion))
    if verdict == "derived" and facts.of_siblings:
        return WORDS.advice("compare-source", "dtype", facts.model.ref)
    if verdict == "quantized-copy" and facts.quantized is not None and facts.quantized.not_source:
        return WORDS.advice("requantize", "check", facts.model.ref, odd=len(facts.quantized.not_source))
    if verdict in ("same-weights", "quantized-copy"):
        code = "use-source" if verdict == "quantized-copy" else "compare-all" if sampled else "use-either"
        return WORDS.advice(code, "dtype", facts.model.ref, source=parents[0])
    if verdict in ("unrelated", "undecided"):
        return WORDS.advice("read-all" if verdict == "undecided" and sampled else "other-candidates", "dtype", facts.model.ref)
    if verdict == "derived" and is_copy(facts.conversion) and (broken := sum(row.damaged for row in facts.conversion)):
        return WORDS.advice("repair", "check", facts.model.ref, tensors=broken)
    code = "list-layers" if verdict == "stack" else "name-one" if verdict == "derived" and len(parents) > 1 else "name-base"
    return WORDS.advice(code, "dtype", facts.model.ref, parents=parents)


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
    for one, other, values in ((model, source, int(facts.sums["broken_x"])), (source, model, int(facts.sums["broken_p"]))):
        if values:
            yield WORDS.note("non-finite", model=one, source=other, values=values)
    if verdict in ("unrelated", "undecided"):
        yield WORDS.note("positions")
    if verdict == "quantized-copy" and facts.quantized is not None and facts.quantized.calibrated:
        yield WORDS.note("calibrated")
        if scaled := sum(row.note is not None and row.note.code in SCALED for row in facts.conversion):
            yield WORDS.note("scaled-channels", tensors=scaled)
    if verdict == "quantized-copy" and facts.quantized is not None and (lacks := facts.quantized.lacks):
        yield WORDS.note("lacks", model=model, source=source, tensors=len(lacks), names=lacks[:3])
    if kept := _in_the_order_of_transformers(facts):
        yield WORDS.note("not-reordered", model=model, source=source, tensors=len(kept), name=kept[0])
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


def _in_the_order_of_transformers(facts: Explanation) -> list[str]:
    """Return the queries and keys of a GGUF file whose rows are in the order of a source of transformers."""
    source = facts.found.sides[facts.best]
    if (source.config or {}).get("model_type") not in _REORDERED:
        return []
    alike = (row for row in facts.conversion if row.relation in (*FAITHFUL, "changed") and row.form == AS_STORED)
    return [row.name for row in alike if _OF_GGUF.fullmatch(row.name) and all("self_attn" in name for name in row.sources)]


def _of_merge(fit: Fit) -> Iterator[Note]:
    if fit.weights_by != "exact-values" and (fit.condition is None or fit.condition >= _SIMILAR):
        yield WORDS.note("one-run")
    for parent in fit.parents:
        if parent.alike:
            yield WORDS.note("not-told-apart", names=(parent.ref, *parent.alike))
