"""Derives the verdict from the facts, and writes its statement."""

from analyzers.formatting import listed, magnitude, plural, share
from analyzers.parents.evidence import evidence
from analyzers.parents.facts import BEYOND_CHANCE, FEWEST, RELATED, Facts, alike, at_a_tie, bound, once_cast, proven, pruned, related
from analyzers.parents.proof import is_step_function
from analyzers.parents.report import FAITHFUL, Candidate, Conversion, Evidence, Fit, Parent, SparseMerge, Verdict
from analyzers.tensor_words import layer_range

# Most runs of layers that a statement names.
_RUNS = 6
# Most tensors that a statement names, and the cosine below which values are another tensor's.
_NAMED, _UNLIKE = 3, 0.5
# Ratio of distances above which the nearer of two similar candidates is called closest.
_CLOSEST = 1.01
# Least condition number of parents that may be steps of one training.
_SIMILAR = 10


def judge(facts: Facts) -> tuple[Verdict, str, list[Evidence]]:
    """Return the verdict, its statement, and the evidence, proofs first."""
    best = facts.candidates[0]
    if best.cosine is None or best.cosine_null is None or best.compared < FEWEST:
        return "undecided", f"Too few values can be compared to tell ({best.compared:,}).", []
    verdict, statement = _verdict(facts, best)
    if facts.made and verdict not in ("same-weights", "merge", "stack"):
        apart = f"{magnitude(best.distance_without)} times its norm{_without(best)}"
        verdict, statement = "derived", f"{facts.made}: the difference is {apart}."
    return verdict, statement, evidence(facts, verdict)


def named_candidates(verdict: Verdict, facts: Facts) -> tuple[str, ...]:
    """Return the candidates that a verdict other than a stack names: of a derived model all that it may come from, the closest first."""
    if verdict in ("unrelated", "undecided"):
        return ()
    if verdict == "merge":
        return tuple(each.ref for each in facts.parents)
    return tuple(row.ref for row in (alike(facts) if verdict == "derived" else facts.candidates[:1]))


def _origin(facts: Facts) -> str:
    """Begin the statement on a derived model: weights do not show which of several similar models was trained on, or whether one was."""
    best, *others = [row.ref for row in alike(facts)]
    if not others:
        return f"Derived from {best}, or from a common ancestor"
    more = [f"{len(others) - _NAMED:,} more"] if len(others) > _NAMED else []
    return f"Derived from one of {listed([best, *others[:_NAMED], *more])}, which are too similar to tell apart, or from a common ancestor"


def _apart(facts: Facts) -> str:
    """Say how far the model is from the closest candidate, and whether that one is clearly the closest."""
    best, *others = alike(facts)
    size = f"{magnitude(best.distance_without)} times its norm{_without(best)}"
    if not others:
        return f"the difference is {size}"
    if (others[0].distance_without or 0) <= _CLOSEST * (best.distance_without or 0):
        apart = f"the difference from {best.ref} is {size}, from {others[0].ref} {magnitude(others[0].distance_without)} times"
        return f"none is clearly the closest, {apart}"
    return f"{best.ref} is closest{'' if facts.exact_mode else ' in the sample'}, the difference is {size}"


def _without(candidate: Candidate) -> str:
    return f" without {plural(candidate.outliers.values, 'outlier')}" if candidate.outliers else ""


def _verdict(facts: Facts, best: Candidate) -> tuple[Verdict, str]:
    if facts.through is not None and not facts.moved and facts.whole:
        read, by = ("", "") if facts.exact_mode else (" that was read", ", by samples")
        layout = f", in another layout ({'; '.join(facts.forms[:_NAMED])}{by})" if facts.forms else ""
        return "same-weights", f"The same weights as {best.ref}{layout}: every value{read} is equal{once_cast(facts)}{bound(facts)}."
    if facts.stack and (facts.exact_stack or (related(best) and not _exact_merge(facts))):
        return "stack", _stacked(facts)
    if not related(best) and not proven(best):
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
        lost = _or_a_run(facts.fit)
        if facts.constant:
            more = f" and {len(facts.constant) - 1:,} more" if len(facts.constant) > 1 else ""
            lost += f" {facts.constant[0]}{more} {'hold' if more else 'holds'} one value throughout, which no parent has there."
        return "merge", f"A merge{_way_of_merging(facts)}: {parts.removeprefix(' + ').strip()}{_but(facts.fit)}.{lost}"
    if facts.stepwise and is_step_function(facts.stepwise) and (best.equal_share or 0) < 0.5 and (damage := _damage(facts, best)):
        return "derived", damage
    stepwise = facts.stepwise is not None and is_step_function(facts.stepwise) and (best.equal_share or 0) < 0.5
    if (stepwise and (best.cosine_without or 0) > 0.9) or (facts.on_grids and all(row.relation in FAITHFUL for row in facts.conversion)):
        apart = f"{share(best.distance_without)} away from it{_without(best)}"
        return "quantized-copy", f"A quantized copy of {best.ref}, {apart}: {_grid(facts)}."
    return "derived", _derivation(facts, best)


def _grid(facts: Facts) -> str:
    """Name the grids of a quantized copy, and say how many values are the source's rounded on them."""
    compared, nearest, ties = (sum(counts[i] for counts in facts.on_grids.values()) for i in range(3))
    if not compared:
        return "rounded to a coarser grid"
    number = f"all {compared:,}" if nearest == compared else f"{nearest:,} of {compared:,}"
    return f"{listed(list(facts.on_grids))}, and {number} values compared equal the source rounded so{at_a_tie(ties)}"


def _few_akin(facts: Facts, best: Candidate) -> str:
    """Write the statement if most of the model is not the candidate's: a few shared matrices may be constants of the architecture."""
    number, part = facts.akin
    if not number:
        return f"Not decided: some values equal those of {best.ref}, but in no matrix most of them. The rest is unrelated."
    shared = f"{plural(number, 'matrix', 'matrices')} ({share(part)} of the values) {'is' if number == 1 else 'are'} equal or related"
    return f"Not decided: {shared} to what {best.ref} has there, the others are unrelated. Descent of the whole is not shown."


def _not_related(facts: Facts, best: Candidate) -> tuple[Verdict, str]:
    if (best.shared or 0) >= max(RELATED, BEYOND_CHANCE * (best.agreement_null or 0)):
        return "undecided", f"Not decided: both share a structure, a table or an initialisation; descent from {best.ref} is not shown."
    if (best.agreement or 0) >= max(RELATED / 2, BEYOND_CHANCE * (best.agreement_null or 0)):
        return "undecided", f"Not decided: the weights are slightly similar to those of {best.ref}, which unrelated models can be too."
    if best.agreement is None or facts.through is not None:
        return "undecided", f"Not decided: what can be compared with {best.ref} is zero, common values, or a table as any model may have."
    several = "any of the candidates" if len(facts.candidates) > 1 else best.ref
    return "unrelated", f"Not related to {several}, weight by weight."


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
            f"makes it another model{bound(facts)}."
        )
    if facts.moved and model.whole:
        lost = [part.what for part in other.left_out if part.code == "layers" and len(other.left_out) == 1]
        without = f", without its {lost[0]}" if lost else ""
        moved = plural(len(facts.moved), "layer")
        return f"Made of layers of {best.ref}{without}: every value{read} is equal, {moved} moved or repeated{bound(facts)}."
    parts = f"{share(model.share)} of this model and {share(other.share)} of the other"
    return f"What was compared is equal to {best.ref}: every value{read}, {parts}{bound(facts)}."


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
    return f"A stack of layers of {of}{how}: {', '.join(said) + more if more else listed(said)}{bound(facts) if facts.exact_stack else ''}."


def is_odd(row: Conversion) -> bool:
    """Return whether a tensor's values differ from its source's more than training or rounding would explain."""
    unlike = (row.cosine or 0) < _UNLIKE or row.outliers > 0
    return row.relation not in (*FAITHFUL, "differs", "unmatched") or (row.relation == "differs" and unlike)


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
        return f"{_origin(facts)}, but for {plural(len(odd), 'tensor')}: {', '.join(named)}{more}."
    changed = len(rows) - len(faithful) - len(odd)
    trained = f", {changed:,} {'differs' if changed == 1 else 'differ'} as after training" if changed else ""
    return (
        f"{len(faithful):,} of {plural(len(rows), 'tensor')} are those of {best.ref}{trained}, and {plural(len(odd), 'holds', 'hold')} "
        f"other values, {differ:,} of {values:,}: {', '.join(named)}{more}."
    )


def _derivation(facts: Facts, best: Candidate) -> str:
    damage = "" if pruned(best) else _damage(facts, best)
    if damage:
        return damage
    if facts.moved:
        return f"{_origin(facts)}, with {plural(len(facts.moved), 'layer')} moved or repeated."
    if pruned(best):
        read = "" if facts.exact_mode else " that were read"
        return f"Derived from {best.ref} by pruning: {share(best.zeroed)} of the values{read} became zero, {_others(best)}."
    if facts.difference is not None and facts.difference.low_rank:
        where = plural(len(facts.difference.tensors), "matrix", "matrices")
        rank = f"in the {where} measured, the difference from {best.ref} has rank {facts.difference.rank}, like a merged LoRA"
        return f"{_origin(facts)}: {_apart(facts)}; {rank}."
    if (best.equal_share or 0) == 1 and best.vectors_equal is not None and best.vectors_equal < 1:
        return f"{_origin(facts)}: the matrices are equal in bf16 to those of {best.ref}, norms or biases differ{bound(facts)}."
    return f"{_origin(facts)}: {_apart(facts)}."


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


def _or_a_run(fit: Fit | None) -> str:
    """Say what else similar parents may be, unless exact values give the weights: a step of a training is nearly a mean of others."""
    if fit is None or fit.weights_by == "exact-values" or (fit.condition is not None and fit.condition < _SIMILAR):
        return ""
    return " Checkpoints of one training run can look like this."


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


def _others(candidate: Candidate) -> str:
    """Say what became of the values that are not zero."""
    same = (candidate.zeroed or 0.0) + (candidate.equal_share or 0.0)
    return "the others are equal in bf16" if same == 1 else f"{share(candidate.equal_share)} are equal in bf16"
