"""The words of parents: a template per code, and the tiles."""

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from analyzers.core.formatting import cosine, count, magnitude, plural, share
from analyzers.core.notes import Tile
from analyzers.core.tensor_words import layer_range
from analyzers.core.words import Words

if TYPE_CHECKING:
    from analyzers.comparison.parents.report import Candidate, MovedLayer, Parent, ParentsReport

FRONT = "candidates"
WORDS = Words(
    {
        # the same values
        "same-weights": "{model} has the same weights as {source}: all {values:#value} compared are equal.",
        "same-rounded": (
            "{model} has the same weights as {source} but for rounding to {formats:list}: {lost:count} of {values:#value} compared lost "
            "digits."
        ),
        "equal-part": (
            "{model} shares weights with {source}: all {values:#value} compared are equal, {share:share} of the one and {other:share} of "
            "the other."
        ),
        "adapter-beside": (
            "{bearer} is {other} with an unmerged adapter of rank {rank:count} next to its weights: all {values:#value} that both have "
            "are equal."
        ),
        "relayered": ("{model} is made of layers of {source}: all {values:#value} compared are equal, {layers:#layer} moved or repeated."),
        # rounded copies
        "quantized-steps": (
            "{model} is a quantized copy of {source}, {distance:share} away from it: a step function of its values, as rounding to a "
            "coarser grid makes."
        ),
        # derived
        "derived": ("{model} was trained from {source}, or both from a common ancestor: the difference is {distance:share} of its norm."),
        "similar": (
            "{model} was trained from one of {sources:list}, too similar to tell apart, or from a common ancestor: {source} is nearest, "
            "at {distance:share} of its norm."
        ),
        "pruned": ("{model} is {source} pruned: {zeroed:share} of the values became zero, {equal:share} are equal in bf16."),
        "vectors": (
            "{model} was trained from {source}, or both from a common ancestor: all matrices are equal in bf16, and {equal:share} of the "
            "values of norms and biases."
        ),
        "moved": "{model} was trained from {source}, or both from a common ancestor, with {layers:#layer} moved or repeated.",
        "damaged": (
            "{odd:count} of {tensors:#tensor} of {model} hold other values at the places of {source}, such as {names:names}; {kept:count} "
            "are equal, and {changed:count} changed as in training."
        ),
        "scaled": (
            "{model} has the values of {source}, but in {tensors:#tensor}, such as {names:names}, times a factor or plus a constant; "
            "{kept:#other tensor|other tensors} equal the source's."
        ),
        "replaced": (
            "{model} was trained from {source}, or both from a common ancestor, except for {odd:#tensor} with other values, such as "
            "{names:names}."
        ),
        "merged": "{model} is {source} with {adapters:list} merged in: the difference is {distance:share} of its norm.",
        "base": "{model} is the base of {source}: the difference is {distance:share} of its norm.",
        "sibling": ("{model} is made from the base of {source}, with other adapters: the difference is {distance:share} of its norm."),
        "reordered": (
            "{model} has the values of {source} in another order in {tensors:#tensor}, such as {names:names}: heads, neurons or rows were "
            "moved. {kept:#other tensor|other tensors} equal the source's."
        ),
        "unpruned": "{source} is {model} pruned: {zeroed:share} of its values became zero, {equal:share} are equal in bf16.",
        # merges and stacks
        "merge": "{model} is a merge, up to rounding: {recipe:list}.",
        "merge-exact": "{model} is a merge: {exact:share} of {values:#value} are exactly {recipe:list}, rounded.",
        "merge-by-layer": (
            "{model} is a merge with weights by layer, on average {recipe:list}: {exact:share} of {values:#value} are exactly that, "
            "rounded."
        ),
        "merge-partly": "{model} is a merge and more: {recipe:list}, which leaves {residual:share} of the norm unexplained.",
        "stack": "{model} is a stack of layers of {sources:list}: {layers:#layer} equal theirs bit for bit.",
        "stack-tensors": (
            "{model} mixes {sources:list} tensor by tensor: each of {tensors:#tensor} equals that of one of them, bit for bit."
        ),
        "stack-fitted": "{model} is a stack of layers of {sources:list}, as far as the fits of {layers:#layer} tell.",
        # no relation, or not decided
        "unrelated": "{model} is not related, weight by weight, to {sources:list}.",
        "few-values": "Not decided: {model} and {source} share {values:#value}, too few to tell.",
        "few-related": (
            "Not decided: {model} is related to {source} in {matrices:#matrix|matrices} with {share:share} of the values, and not in the "
            "others."
        ),
        "shared-structure": (
            "Not decided: {model} and {source} share a structure, a table or an initialisation, which is no proof of descent."
        ),
        "slightly-similar": (
            "Not decided: the signs of {model} and {source} correlate by {agreement:magnitude}, as those of unrelated models can too."
        ),
        "common-values": "Not decided: {model} and {source} share only zeros, common values, or a table that any model may have.",
        # advice
        "use-either": "Use either of the two: {source} holds the same weights.",
        "keep-unrounded": "Keep the one that was not rounded to {formats:list}: values of the other lost digits.",
        "compare-all": "Compare all values in exact mode before you use one in place of the other.",
        "use-source": "Where precision matters, use {source}: this copy was rounded.",
        "other-candidates": "Try other candidates, with tensors of the same names and shapes.",
        "read-all": "Try other candidates, or read everything in exact mode.",
        "list-layers": "List {parents:list} under base_model in the model card, with the layers of each.",
        "name-base": "Check that the model card names {parents:list} under base_model.",
        "name-one": "Check that the model card names one of {parents:list} under base_model.",
        "repair": "Repair {tensors:#tensor} before you use it: training does not leave such values.",
        "see-merge": "Compare the base with its adapter (sparsity) to see what a merge keeps of it.",
        # what changes how the numbers are to be read
        "unseen": "None of the {blocks:#block} read differs: at most {unseen:share} of all blocks do, at 95% confidence.",
        "non-finite": "{values:#value} of {model} NaN or infinite where {source} has a number: left out of distances and fits.",
        "source-non-finite": "{values:#value} of {source} NaN or infinite where {model} has a number: left out of distances and fits.",
        "spike": (
            "One value differs from {source} by {largest:magnitude}, with {carried:share} of the squared distance: distance and cosine "
            "say little of the others."
        ),
        "positions": "Weights are compared position by position: permuted neurons or rotated weights are not recognised.",
        "one-run": "Checkpoints of one training run can look like this merge.",
        "exceptions": "Layers that are not the combination, but trained after the merge, or replaced: {layers:list}.",
        "unlike": "Not similar position by position: {roles:list}. They were replaced, or their neurons permuted, which is not tested.",
        "not-told-apart": "{names:list} are too similar to tell apart: only the sum of their weights is known.",
        "joint-rows": "Candidates have different numbers of rows: the joint fit uses the rows that all have.",
        "not-compared": "Not compared, because no matrix matches by name and shape, or all that do are constant: {names:list}.",
        "screened": "Compared in a small sample only, as less similar: {candidates:#candidate}.",
        "card-unreadable": "{name}, the base_model of the model card, cannot be read.",
    }
)
# What became of a tensor.
TENSORS = Words(
    {
        "non-finite": "{values:#value} NaN or infinite",
        "constant": "every value is {value:magnitude}",
        "first-rows": "only the first {rows:count} of {all:#row} are the source's",
        "by-block": "a factor of its own for each block, from {low:magnitude} to {high:magnitude}",
        "steps": "a step function of the source, as rounding to a coarser grid makes",
        "some-zeros": "{values:#value} became zero",
    }
)
_RELATIONS = {
    "same-weights": "Same weights",
    "quantized-copy": "Quantized copy",
    "derived": "Derived, or a common ancestor",
    "merge": "Merge",
    "stack": "Stack of layers",
    "unrelated": "Not related",
    "undecided": "Not decided",
}
_RUNS = 6  # most runs of layers that a tile names


def recipe(parents: "Sequence[Parent]") -> tuple[str, ...]:
    """Write the terms of a merge, the largest weight first, each with half its interval unless three digits are certain."""
    return tuple(f"{each.weight:.3f}{_margin(each)} x {each.ref}" for each in sorted(parents, key=lambda each: -each.weight))


def _margin(parent: "Parent") -> str:
    margin = max(parent.high - parent.weight, parent.weight - parent.low)
    return "" if margin < 0.0005 else f" ± {margin:.3f}" if margin < 1 else " (uncertain)"


def layer_runs(rows: "Sequence[MovedLayer]") -> list[str]:
    """Write a layer map with consecutive layers joined: ``layers 0 to 7 are layers 4 to 11 of org/a``."""
    ordered = sorted(rows, key=lambda row: -1 if row.layer is None else row.layer)

    def together(entry: "tuple[int, MovedLayer]") -> tuple[str, object, object]:
        place, row = entry
        if row.layer is None or row.source is None:
            return row.ref, place, None
        return row.ref, row.layer - place, row.source - row.layer

    runs = [[row for _, row in entries] for _, entries in groupby(enumerate(ordered), key=together)]
    return [_run(run[0], run[-1]) for run in runs]


def _run(first: "MovedLayer", last: "MovedLayer") -> str:
    if first.layer is None:
        return f"tensors outside the layers are those of {first.ref}"
    verb = "is" if first.layer == last.layer else "are"
    return f"{layer_range(first.layer, last.layer)} {verb} {layer_range(first.source, last.source)} of {first.ref}"


def tiles(report: "ParentsReport") -> list[Tile]:
    """Return the relation, how many values are equal, how far the model is from the candidate or a fit, and what proves it."""
    best = report.candidates[0]
    found = [relation(report)]
    if report.verdict == "merge":
        found += [_exact(report), _unexplained(report)]
    elif report.verdict == "stack" or report.layer_map:
        found += [equal_values(report), _layers(report)]
    else:
        found += [equal_values(report), _distance(report, best), _uncommon(report, best)]
    if report.in_copy and (broken := [row for row in report.conversion if row.damaged]):
        names = [f"{row.name}: {row.relation}" for row in broken[:3]]
        detail = f"{'; '.join(names)}{f'; {len(broken) - 3:,} more' if len(broken) > 3 else ''}."
        found.append(Tile(label="Damaged", value=plural(len(broken), "tensor"), kind="warning", detail=detail))
    return found


def relation(report: "ParentsReport") -> Tile:
    """Return the relation, with the kind of evidence for it."""
    if report.construction is not None and report.verdict == "derived":
        return Tile(label="Relation", value="By an adapter", kind="fact", detail="The references say so.")
    kind = "undecided" if report.verdict == "undecided" else "proof" if report.proof else "inference"
    return Tile(label="Relation", value=_RELATIONS[report.verdict], kind=kind)


def _measured(report: "ParentsReport") -> str:
    return "fact" if report.unseen is None else "estimate"


def equal_values(report: "ParentsReport") -> Tile:
    """Return how many values of the best candidate's matrices are equal."""
    best = report.candidates[0]
    if best.equal_share is None:
        return _unknown("Matrices equal", f"Nothing of {best.ref} can be compared.")
    detail = f"In bf16, of {plural(best.compared, 'value')} of {best.ref}; by chance {share(best.equal_by_chance)}."
    return Tile(label="Matrices equal", value=share(best.equal_share), kind=_measured(report), detail=detail)


def _distance(report: "ParentsReport", best: "Candidate") -> Tile:
    if best.distance is None:
        return _unknown("Distance", "The values of one side are all zero, or none could be compared.")
    detail = f"|X - P| / |P| for {best.ref}; cosine {cosine(best.cosine)}, by chance 0 ± {magnitude(best.cosine_null)}."
    return Tile(label="Distance", value=share(best.distance), kind=_measured(report), detail=detail)


def _uncommon(report: "ParentsReport", best: "Candidate") -> Tile:
    if best.telling_equal is None:
        return _unknown("Equal uncommon values", f"All values of {best.ref} are zero, frequent on both sides, or in smooth rows.")
    detail = f"Of {plural(best.telling, 'value')} neither zero nor frequent on both sides; by chance {share(best.telling_by_chance)}."
    return Tile(label="Equal uncommon values", value=share(best.telling_equal), kind="proof" if report.proof else "fact", detail=detail)


def _layers(report: "ParentsReport") -> Tile:
    runs = layer_runs(report.layer_map)
    more = f"; {len(runs) - _RUNS:,} more" if len(runs) > _RUNS else ""
    detail = f"{'; '.join(runs[:_RUNS])}{more}."
    exact = all(row.equal_share == 1 for row in report.layer_map)
    value = count(len(report.layer_map))
    return Tile(label="Layers matched", value=value, kind="proof" if exact else "inference", detail=f"{detail[:1].upper()}{detail[1:]}")


def _unexplained(report: "ParentsReport") -> Tile:
    fit = report.fit
    if fit is None or fit.residual is None:
        return _unknown("Left unexplained", "No candidate has enough of the model's matrices to be fitted.")
    detail = f"|X - fit| / |X|; rounding to the stored dtype alone leaves {share(fit.rounding)}."
    return Tile(label="Left unexplained", value=share(fit.residual), kind="estimate", detail=detail)


def _exact(report: "ParentsReport") -> Tile:
    fit = report.fit
    if fit is None or fit.exact_share is None:
        return _unknown("Exact values", "The matrices are stored in several dtypes, or in one whose rounding is not tested.")
    detail = f"Values that equal the combination, rounded as stored; by chance {share(fit.exact_by_chance)}."
    return Tile(label="Exact values", value=share(fit.exact_share), kind="proof" if report.proof else "fact", detail=detail)


def _unknown(label: str, why: str) -> Tile:
    return Tile(label=label, value="Cannot tell", kind="undecided", detail=why)
