"""Writes the evidence for a verdict, each sentence about one named candidate or combination."""

import math
from collections.abc import Iterator
from typing import Literal

from analyzers.formatting import listed, magnitude, plural, share
from analyzers.parents.combination import proves_more
from analyzers.parents.facts import RELATED, Facts, at_a_tie, beyond_chance, once_cast, proven, pruned
from analyzers.parents.report import Candidate, Evidence, Fit, Verdict

_KINDS = ("proof", "measurement", "inference")


def evidence(facts: Facts, verdict: Verdict) -> list[Evidence]:
    """Return the evidence for a verdict: proofs, measurements, then inferences."""
    best = facts.candidates[0]
    rows = [*_equality(facts, best), *_exactness(facts), *_on_grids(facts, best), *_moved(facts)]
    if verdict in ("derived", "merge", "quantized-copy"):
        rows += _inferences(facts, best, verdict)
    if verdict in ("unrelated", "undecided"):
        rows = [_told("measurement", each.text) for each in rows] + [_told("measurement", _similarity(best))]
    return sorted(rows, key=lambda each: _KINDS.index(each.kind))


def _equality(facts: Facts, best: Candidate) -> list[Evidence]:
    found = []
    if facts.through is not None and best.equal_share != 1:
        found.append(_told("proof", f"All {best.compared:,} values compared are equal{once_cast(facts)}."))
    for each in facts.candidates[:3]:
        if proven(each) or (each is best and not facts.parents[1:]):
            of = "values" if each.telling == each.compared else "values that are neither zero nor frequent on both sides"
            text = f"{share(each.telling_equal)} of {each.telling:,} {of} equal those of {each.ref} in bf16"
            found.append(_told(_proof(proven(each)), f"{text}; chance gives {_chance(each.telling_by_chance)}."))
    return found


def _exactness(facts: Facts) -> list[Evidence]:
    fit = facts.fit
    if fit is not None and fit.sparse is not None:
        text = (
            f"{share(fit.sparse.exact_share)} of the values are exactly those of {fit.sparse.base} plus none or some of these updates; "
            f"with the updates of other values it would be {_chance(fit.sparse.exact_by_chance)}."
        )
        return [_told("proof", text)]
    if fit is None or fit.exact_share is None or not facts.parents:
        return []
    if len(facts.parents) == 1 and (fit.exact_weights[0] == 1 or fit.exact_share < 0.5):
        return []
    refs = [each.ref for each in facts.parents]
    parts = [f"{weight:.4g} x {ref}" for weight, ref in zip(fit.exact_weights, refs, strict=True)]
    what = f"a combination of {listed(refs)} with the weights of their layer" if fit.exact_per_layer else " + ".join(parts)
    single = f", and a single candidate at most {share(fit.exact_alone)}" if len(refs) > 1 else ""
    rounding = ", each product rounded too" if fit.arithmetic == "stored" else ""
    text = (
        f"{share(fit.exact_share)} of {fit.exact_values:,} values are exactly {what}, rounded as stored{rounding}; chance gives "
        f"{_chance(fit.exact_by_chance)}{single}."
    )
    return [_told(_proof(proves(fit, len(refs))), text)]


def proves(fit: Fit, parents: int) -> bool:
    """Return whether exact values prove the combination of this many parents, by more than chance and a single candidate explain."""
    exact = fit.exact_share or 0.0
    return beyond_chance(exact, fit.exact_by_chance) and (parents < 2 or proves_more(exact, fit.exact_alone or 0.0))


def _on_grids(facts: Facts, best: Candidate) -> Iterator[Evidence]:
    for grid, (compared, nearest, ties) in facts.on_grids.items():
        number = f"All {compared:,}" if nearest == compared else f"{nearest:,} of {compared:,}"
        text = f"{number} values compared on the grid of {grid} equal those of {best.ref} rounded on that grid{at_a_tie(ties)}."
        yield _told(_proof(nearest == compared), text)


def _moved(facts: Facts) -> list[Evidence]:
    if not facts.moved:
        return []
    first = facts.moved[0]
    text = f"{plural(len(facts.moved), 'layer')} matched by content: layer {first.layer} is layer {first.source} of {first.ref}, for one."
    return [_told("measurement", text)]


def _inferences(facts: Facts, best: Candidate, verdict: Verdict) -> list[Evidence]:
    found, inferred = [_similarity(best), f"The distance from {best.ref} is {magnitude(best.distance)} of its norm."], list[str]()
    fit = facts.fit
    if fit is not None and verdict == "merge":
        beside = f" (rounding alone leaves {magnitude(fit.rounding)})" if fit.rounding else ""
        found.append(f"The fit leaves a residual of {magnitude(fit.residual)} of the norm{beside}.")
    if facts.stepwise is not None and verdict == "quantized-copy":
        found.append(
            f"Between neighbours in a block, {share(facts.stepwise.merged)} of different values became equal and "
            f"{share(facts.stepwise.inverted)} changed their order: a step function, as quantization is."
        )
    if facts.difference is not None and facts.difference.rank and verdict == "derived" and not pruned(best):
        of = facts.difference
        size = f"has rank {of.rank} above the rounding noise" if of.low_rank else f"exceeds rounding in {of.rank} of {of.rows} directions"
        rest = "and no more than rounding is left" if of.low_rank else "and more than rounding is left" if of.rank < of.rows else ""
        where = plural(len(of.tensors), "matrix", "matrices")
        found.append(f"In {where}, the difference from {of.ref} {size}{f', {rest}' if rest else ''}.")
    if facts.unlike and (best.agreement or 0) > 2 * RELATED:
        inferred.append(
            f"Compared position by position, these differ: {', '.join(facts.unlike)}. They were replaced, or their neurons permuted, "
            "which is not tested."
        )
    if verdict == "derived" and not facts.made:
        inferred.append("Weights do not show which of the two came first.")
    return [*(_told("measurement", text) for text in found), *(_told("inference", text) for text in inferred)]


def _similarity(candidate: Candidate) -> str:
    """Write the agreement and the cosine, with the values expected by chance."""
    agree = ""
    if candidate.agreement is not None:
        chance = magnitude(candidate.agreement_null)
        agree = f"; without means and common patterns, signs agree by {_signed(candidate.agreement)}, by chance 0 ± {chance}"
    chance = magnitude(candidate.cosine_null)
    return f"The cosine with {candidate.ref} is {_signed(candidate.cosine)}; chance gives 0 ± {chance}{agree}.{_outlying(candidate)}"


def _outlying(candidate: Candidate) -> str:
    """Say which values dominate the distance and the cosine, and what these are without them."""
    few = candidate.outliers
    if few is None:
        return ""
    differ, carry = ("differs", "it carries") if few.values == 1 else ("differ", "they carry")
    are = f"{few.values:,} of {candidate.compared:,} values read {differ} from those of {candidate.ref}"
    return (
        f" {are} by more than sixteen typical values: {carry} {share(few.carried)} of the squared distance; without them the cosine is "
        f"{_signed(few.cosine)}, and the distance {magnitude(few.distance)} of the norm."
    )


def _told(kind: Literal["proof", "measurement", "inference"], text: str) -> Evidence:
    return Evidence(proof=kind == "proof", kind=kind, text=text)


def _proof(proves: bool) -> Literal["proof", "measurement"]:
    return "proof" if proves else "measurement"


def _signed(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.3f}".replace("-0.000", "0.000")


def _chance(value: float | None) -> str:
    return share(value) if value is not None and math.isfinite(value) else "an unknown share"
