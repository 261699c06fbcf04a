"""Derives the verdict with the evidence for it, and the sentences of a report."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from analyzers.coverage import Coverage
from analyzers.formatting import listed, magnitude, plural, share
from analyzers.parents.proof import Monotone, is_step_function
from analyzers.parents.report import (
    FAITHFUL,
    Candidate,
    Conversion,
    Difference,
    Evidence,
    Fit,
    MovedLayer,
    Parent,
    SparseMerge,
    Verdict,
)
from analyzers.parents.sentences import none_differs
from analyzers.tensor_words import layer_range

# Agreements of signs that unrelated weights do not reach, overall and in half of the layers, in addition to the deviations of chance.
RELATED = 0.1
RELATED_LAYER = 0.05
_BEYOND_CHANCE = 8
# Fewer values are not enough for a verdict.
FEWEST = 1_000
# Factor and distance by which the share of equal values must exceed chance to count as proof.
_ABOVE_CHANCE = 5
_PROVEN = 0.02
# Most runs of layers that a statement names.
_RUNS = 6
# Most tensors that a statement names, and the cosine below which values are another tensor's.
_NAMED, _UNLIKE = 3, 0.5


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts that determine the verdict.

    candidates: the best first. parents: weights of the candidates that the fit needs. layers: share of the layers in which the best
    candidate is related; akin: number of matrices that are related or equal, and their share of the values; unlike: roles in which the
    candidate is not related. through: see `collect.Sums.cast`. stepwise: X as a function of the best candidate. at_rounding: whether
    nothing but rounding is left. moved: layers that have other numbers in the best candidate. coverage: of the model and the best
    candidate. stack: all layers, if they come from several candidates; exact_stack: whether they do so bit for bit. conversion: each tensor
    if much of the model is the best candidate's, else only odd ones; constant: matrices of one value, unlike the candidates'. adapters:
    ranks of the adapter matrices stored in the model and in the best candidate, 0 without any. forms: layouts in which the best candidate
    matches. lost: number of values read that are not equal as stored. unseen: for a sample, its blocks, and the bound on the share of
    blocks of a kind that it does not show.
    """

    candidates: Sequence[Candidate]
    fit: Fit | None
    parents: Sequence[Parent]
    layers: float
    akin: tuple[int, float]
    unlike: Sequence[str]
    through: str | None
    stepwise: Monotone | None
    at_rounding: bool
    moved: Sequence[MovedLayer]
    difference: Difference | None
    exact_mode: bool
    coverage: tuple[Coverage, Coverage]
    stack: Sequence[MovedLayer]
    exact_stack: bool
    conversion: Sequence[Conversion]
    constant: Sequence[str]
    adapters: Sequence[int]
    forms: Sequence[str]
    lost: int
    unseen: tuple[int, float] | None

    @property
    def whole(self) -> bool:
        """Return whether all of the model and of the best candidate was compared."""
        return all(each.whole for each in self.coverage)


def judge(facts: Facts) -> tuple[Verdict, str, list[Evidence]]:
    """Return the verdict, its statement, and the evidence, proofs first."""
    best = facts.candidates[0]
    if best.cosine is None or best.cosine_null is None or best.compared < FEWEST:
        return "undecided", f"Too few values can be compared to tell ({best.compared:,}).", []
    evidence = [*_equality(facts, best), *_exactness(facts), *_moved(facts)]
    verdict, statement = _verdict(facts, best)
    if verdict in ("derived", "merge", "quantized-copy"):
        evidence += _inferences(facts, best, verdict)
    if verdict in ("unrelated", "undecided"):
        evidence.append(_told(False, _similarity(best)))
        evidence = [each.model_copy(update={"proof": False}) for each in evidence]
    return verdict, statement, sorted(evidence, key=lambda each: not each.proof)


def _verdict(facts: Facts, best: Candidate) -> tuple[Verdict, str]:
    if facts.through is not None and not facts.moved and facts.whole:
        read, by = ("", "") if facts.exact_mode else (" that was read", ", by samples")
        layout = f", in another layout ({'; '.join(facts.forms[:_NAMED])}{by})" if facts.forms else ""
        return "same-weights", f"The same weights as {best.ref}{layout}: every value{read} is equal{_once_cast(facts)}{_bound(facts)}."
    if facts.stack and (facts.exact_stack or (related(best) and not _exact_merge(facts))):
        return "stack", _stacked(facts)
    if not related(best) and not _proven(best):
        return _not_related(facts, best)
    if facts.through is not None:
        return "stack" if facts.moved and facts.coverage[0].whole else "derived", _equal_in_part(facts, best)
    if facts.akin[1] <= 0.5 and facts.layers < 0.5 and len(facts.parents) < 2:
        return "undecided", _few_akin(facts, best)
    if facts.fit is not None and facts.fit.sparse is not None:
        return "merge", _sparse(facts.fit.sparse)
    if len(facts.parents) > 1:
        ordered = sorted(facts.parents, key=lambda each: -each.weight)
        parts = "".join(f" {'-' if each.weight < 0 else '+'} {abs(each.weight):.3f}{_margin(each)} x {each.ref}" for each in ordered)
        lost = ""
        if facts.constant:
            more = f" and {len(facts.constant) - 1:,} more" if len(facts.constant) > 1 else ""
            lost = f" {facts.constant[0]}{more} {'hold' if more else 'holds'} one value throughout, which no parent has there."
        return "merge", f"A merge{_way_of_merging(facts)}: {parts.removeprefix(' + ').strip()}{_but(facts.fit)}.{lost}"
    if facts.stepwise and is_step_function(facts.stepwise) and (best.equal_share or 0) < 0.5 and (damage := _damage(facts, best)):
        return "derived", damage
    if facts.stepwise and is_step_function(facts.stepwise) and (best.equal_share or 0) < 0.5 and (best.cosine or 0) > 0.9:
        return "quantized-copy", f"A quantized copy of {best.ref}: {share(best.distance)} away from it, rounded to a coarser grid."
    return "derived", _derivation(facts, best)


def _few_akin(facts: Facts, best: Candidate) -> str:
    """Write the statement if most of the model is not the candidate's: a few shared matrices may be constants of the architecture."""
    number, part = facts.akin
    if not number:
        return f"Not decided: some values equal those of {best.ref}, but in no matrix most of them. The rest is unrelated."
    shared = f"{plural(number, 'matrix', 'matrices')} ({share(part)} of the values) {'is' if number == 1 else 'are'} equal or related"
    return f"Not decided: {shared} to what {best.ref} has there, the others are unrelated. Descent of the whole is not shown."


def _not_related(facts: Facts, best: Candidate) -> tuple[Verdict, str]:
    if (best.shared or 0) >= max(RELATED, _BEYOND_CHANCE * (best.agreement_null or 0)):
        return "undecided", f"Not decided: both share a structure, a table or an initialisation; descent from {best.ref} is not shown."
    if (best.agreement or 0) >= max(RELATED / 2, _BEYOND_CHANCE * (best.agreement_null or 0)):
        return "undecided", f"Not decided: the weights are slightly similar to those of {best.ref}, which unrelated models can be too."
    if best.agreement is None or facts.through is not None:
        return "undecided", f"Not decided: what can be compared with {best.ref} is zero, common values, or a table as any model may have."
    several = "any of the candidates" if len(facts.candidates) > 1 else best.ref
    return "unrelated", f"Not related to {several}, weight by weight."


def related(candidate: Candidate) -> bool:
    """Return whether signs agree more than those of unrelated weights do."""
    return (candidate.agreement or 0.0) >= max(RELATED, _BEYOND_CHANCE * (candidate.agreement_null or 0.0))


def _similarity(candidate: Candidate) -> str:
    """Write the agreement and the cosine, with the values expected by chance."""
    agree = ""
    if candidate.agreement is not None:
        chance = magnitude(candidate.agreement_null)
        agree = f"; without means and common patterns, signs agree by {_signed(candidate.agreement)}, by chance 0 ± {chance}"
    return f"The cosine with {candidate.ref} is {_signed(candidate.cosine)}; chance gives 0 ± {magnitude(candidate.cosine_null)}{agree}."


def _once_cast(facts: Facts) -> str:
    """Say how values that are not equal as stored become equal, and how many lost digits."""
    through = f", cast through {facts.through}" if facts.through else ""
    if not facts.lost:
        return f" once both have the same dtype{through}"
    to = listed(sorted({row.to for row in facts.conversion if row.relation == "rounded" and row.to}))
    return f" once rounded{f' to {to}' if to else ''}{through}, by which {plural(facts.lost, 'value')} lost digits"


def _bound(facts: Facts) -> str:
    """Say that unread values may differ."""
    return "" if facts.unseen is None else f"; {none_differs(*facts.unseen)}"


def _exact_merge(facts: Facts) -> bool:
    """Return whether most values equal a combination of several parents with the same weights in all layers."""
    fit = facts.fit
    return fit is not None and len(facts.parents) > 1 and (fit.exact_share or 0) > 0.5 and not fit.exact_per_layer


def _equal_in_part(facts: Facts, best: Candidate) -> str:
    """Write the statement if everything compared is equal, but it is not all of both, or not in the same layers."""
    model, other = facts.coverage
    read = "" if facts.exact_mode else " that was read"
    rank = next((each for each in facts.adapters if each), 0)
    if rank and not any(kind in side.classes for side in facts.coverage for kind in ("unmatched", "undecoded", "excluded", "empty")):
        of, without = ("This is", best.ref) if facts.adapters[0] else (f"{best.ref} is", "this model")
        return (
            f"{of} {without} with an unmerged adapter of rank {rank} next to its weights: every value{read} is equal, and the adapter "
            f"makes it another model{_bound(facts)}."
        )
    if facts.moved and model.whole:
        lost = other.left_out[0].what if len(other.left_out) == 1 else ""
        without = f", without its {lost}" if lost.startswith("layer") else ""
        moved = plural(len(facts.moved), "layer")
        return f"Made of layers of {best.ref}{without}: every value{read} is equal, {moved} moved or repeated{_bound(facts)}."
    parts = f"{share(model.share)} of this model and {share(other.share)} of the other"
    return f"What was compared is equal to {best.ref}: every value{read}, {parts}{_bound(facts)}."


def _stacked(facts: Facts) -> str:
    """Say which layers come from which model."""
    runs: list[tuple[str, list[int]]] = []
    for row in facts.stack:
        if row.layer is not None:
            if runs and runs[-1][0] == row.ref:
                runs[-1][1].append(row.layer)
            else:
                runs.append((row.ref, [row.layer]))
    said = [f"{layer_range(layers[0], layers[-1])} of {ref}" if ref else "" for ref, layers in runs[:_RUNS]]
    more = f", and {plural(len(runs) - _RUNS, 'more run')} of layers" if len(runs) > _RUNS else ""
    how = f", bit for bit{'' if facts.exact_mode else ' as far as it was read'}" if facts.exact_stack else ", as far as their fits tell"
    of = plural(len({ref for ref, _ in runs}), "model")
    bound = _bound(facts) if facts.exact_stack else ""
    return f"A stack of layers of {of}{how}: {', '.join(said) + more if more else listed(said)}{bound}."


def is_odd(row: Conversion) -> bool:
    """Return whether a tensor's values differ from its source's more than training or rounding would explain."""
    return row.relation not in (*FAITHFUL, "differs", "unmatched") or (row.relation == "differs" and (row.cosine or 0) < _UNLIKE)


def _damage(facts: Facts, best: Candidate) -> str:
    """Say which tensors hold other values than their source, while others are the candidate's; empty if none does."""
    rows = [row for row in facts.conversion if row.relation != "unmatched"]
    faithful, odd = [row for row in rows if row.relation in FAITHFUL], [row for row in rows if is_odd(row)]
    if not odd:
        return ""
    named = [f"{row.name} ({row.note or 'unrelated values'})" for row in odd[:_NAMED]]
    more = f" and {len(odd) - len(named):,} more" if len(odd) > len(named) else ""
    differ, values = sum(row.exceptions for row in odd), sum(row.values for row in rows)
    if len(faithful) < 2:
        return f"Derived from {best.ref}, but for {plural(len(odd), 'tensor')}: {', '.join(named)}{more}."
    changed = len(rows) - len(faithful) - len(odd)
    trained = f", {changed:,} {'was' if changed == 1 else 'were'} changed" if changed else ""
    return (
        f"{len(faithful):,} of {plural(len(rows), 'tensor')} are those of {best.ref}{trained}, and {plural(len(odd), 'holds', 'hold')} "
        f"other values, {differ:,} of {values:,}: {', '.join(named)}{more}."
    )


def _derivation(facts: Facts, best: Candidate) -> str:
    changed = magnitude(best.distance)
    damage = "" if _pruned(best) else _damage(facts, best)
    if damage:
        return damage
    if facts.moved:
        return f"Derived from {best.ref}, with {plural(len(facts.moved), 'layer')} moved or repeated."
    if _pruned(best):
        read = "" if facts.exact_mode else " that were read"
        return f"Derived from {best.ref} by pruning: {share(best.zeroed)} of the values{read} became zero, {_others(best)}."
    if facts.difference is not None and facts.difference.low_rank:
        return f"Derived from {best.ref} by an update of rank {facts.difference.rank}, {changed} times its norm: a merged LoRA or the like."
    if (best.equal_share or 0) == 1 and best.vectors_equal is not None and best.vectors_equal < 1:
        return f"Derived from {best.ref}: the matrices are equal in bf16, norms or biases differ{_bound(facts)}."
    return f"Derived from {best.ref}, or from a common ancestor: the difference is {changed} times its norm."


def _margin(parent: Parent) -> str:
    """Return half the interval of a weight, unless three digits are certain."""
    margin = max(parent.high - parent.weight, parent.weight - parent.low)
    return "" if margin < 0.0005 else f" ± {margin:.3f}" if margin < 1 else " (uncertain)"


def _but(fit: Fit | None) -> str:
    """Name the layers that deviate from the combination."""
    if fit is None or not fit.exceptions:
        return ""
    layers = sorted(layer for layer in fit.exceptions if layer is not None)
    named = [f"layer {layer}" for layer in layers[:_RUNS]] + ["what is outside the layers"] * (None in fit.exceptions)
    more = f" and {len(layers) - _RUNS:,} more" if len(layers) > _RUNS else ""
    return f", but for {listed(named)}{more}: trained on after the merge, or replaced"


def _sparse(found: SparseMerge) -> str:
    how = {"DARE": ", kept at random (as DARE does)", "TIES": ", the largest ones (as TIES does)", None: ""}[found.method]
    parts = [f"{each.factor:.3g} times that of {each.ref} in {share(each.kept)} of the values" for each in found.updates]
    return f"A merge of sparse updates of {found.base}{how}: {listed(parts)}."


def _way_of_merging(facts: Facts) -> str:
    fit, best = facts.fit, facts.candidates[0]
    if fit is None:
        return ""
    if facts.moved:
        return " of stacked layers"
    if fit.spherical is not None and facts.at_rounding:
        return f" by spherical interpolation (SLERP, t = {fit.spherical:.2f})"
    if not facts.at_rounding and (best.equal_share or 0) >= 0.2:
        return " of sparse updates (as TIES or DARE make), with weights that are averages"
    return "" if facts.at_rounding else " and more: the combination leaves a part unexplained"


def _equality(facts: Facts, best: Candidate) -> list[Evidence]:
    found = []
    if facts.through is not None and best.equal_share != 1:
        found.append(_told(True, f"All {best.compared:,} values compared are equal{_once_cast(facts)}."))
    for each in facts.candidates[:3]:
        if _proven(each) or (each is best and not facts.parents[1:]):
            of = "values" if each.telling == each.compared else "values that are not common to both"
            text = f"{share(each.telling_equal)} of {each.telling:,} {of} equal those of {each.ref} in bf16"
            found.append(_told(_proven(each), f"{text}; chance gives {_chance(each.telling_by_chance)}."))
    return found


def _exactness(facts: Facts) -> list[Evidence]:
    fit = facts.fit
    if fit is not None and fit.sparse is not None:
        text = (
            f"{share(fit.sparse.exact_share)} of the values are exactly those of {fit.sparse.base} plus none or some of these updates; "
            f"with the updates of other values it would be {_chance(fit.sparse.exact_by_chance)}."
        )
        return [_told(True, text)]
    if fit is None or fit.exact_share is None or not facts.parents:
        return []
    if len(facts.parents) == 1 and (fit.exact_weights[0] == 1 or fit.exact_share < 0.5):
        return []
    proven = beyond_chance(fit.exact_share, fit.exact_by_chance)
    where = (
        "the weights of their layer" if fit.exact_per_layer else f"weights of {listed([f'{weight:.4g}' for weight in fit.exact_weights])}"
    )
    rounding = ", each product rounded too" if fit.arithmetic == "stored" else ""
    text = (
        f"{share(fit.exact_share)} of {fit.exact_values:,} values are exactly the combination with {where}, rounded as stored{rounding}; "
        f"chance gives {_chance(fit.exact_by_chance)}."
    )
    return [_told(proven, text)]


def _moved(facts: Facts) -> list[Evidence]:
    if not facts.moved:
        return []
    first = facts.moved[0]
    text = f"{plural(len(facts.moved), 'layer')} matched by content: layer {first.layer} is layer {first.source} of {first.ref}, for one."
    return [_told(False, text)]


def _inferences(facts: Facts, best: Candidate, verdict: Verdict) -> list[Evidence]:
    found = [_similarity(best), f"The distance from {best.ref} is {magnitude(best.distance)} of its norm."]
    fit = facts.fit
    if fit is not None and verdict == "merge":
        beside = f" (rounding alone leaves {magnitude(fit.rounding)})" if fit.rounding else ""
        found.append(f"The fit leaves a residual of {magnitude(fit.residual)} of the norm{beside}.")
    if facts.stepwise is not None and verdict == "quantized-copy":
        found.append(
            f"Between neighbours in a block, {share(facts.stepwise.merged)} of different values became equal and "
            f"{share(facts.stepwise.inverted)} changed their order: a step function, as quantization is."
        )
    if facts.difference is not None and facts.difference.rank and verdict == "derived" and not _pruned(best):
        of = facts.difference
        size = f"has rank {of.rank}" if of.low_rank else f"is not low-rank ({of.rank} of {of.rows} directions)"
        found.append(f"The difference from {of.ref} {size} above the rounding noise, in {plural(len(of.tensors), 'matrix', 'matrices')}.")
    if facts.unlike and (best.agreement or 0) > 2 * RELATED:
        found.append(
            f"Where they stand, these are not alike: {', '.join(facts.unlike)}. They were replaced, or their neurons permuted, "
            "which is not tested."
        )
    if verdict == "derived":
        found.append("Weights do not show which of the two came first.")
    return [_told(False, text) for text in found]


def _pruned(candidate: Candidate) -> bool:
    """Return whether all values either became zero or are unchanged."""
    zeroed = candidate.zeroed or 0.0
    return zeroed > 0.01 and zeroed + (candidate.equal_share or 0.0) > 0.99


def _others(candidate: Candidate) -> str:
    """Say what became of the values that are not zero."""
    same = (candidate.zeroed or 0.0) + (candidate.equal_share or 0.0)
    return "the others are equal in bf16" if same == 1 else f"{share(candidate.equal_share)} are equal in bf16"


def _proven(candidate: Candidate) -> bool:
    """Return whether equal values alone prove a relation."""
    equal, chance = candidate.telling_equal or 0.0, candidate.telling_by_chance or 0.0
    return candidate.telling >= FEWEST and equal > max(_PROVEN + chance, _ABOVE_CHANCE * chance)


def beyond_chance(exact: float, by_chance: float | None) -> bool:
    """Return whether so many exact values prove a combination."""
    return exact > max(_PROVEN, _ABOVE_CHANCE * (by_chance or 0.0))


def _told(proof: bool, text: str) -> Evidence:
    return Evidence(proof=proof, text=text)


def _signed(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.3f}".replace("-0.000", "0.000")


def _chance(value: float | None) -> str:
    return share(value) if value is not None and math.isfinite(value) else "an unknown share"
