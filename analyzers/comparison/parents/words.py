"""The words of parents: a template per code, and the tiles."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from analyzers.comparison.parents.report import is_copy
from analyzers.core.formatting import cosine, count, magnitude, plural, share
from analyzers.core.notes import Tile
from analyzers.core.words import Words, times

if TYPE_CHECKING:
    from analyzers.comparison.parents.report import Candidate, Parent, ParentsReport, QuantizedCopy

FRONT = "candidates"
WORDS = Words(
    {
        # the same values
        "same-weights": "{model} has the same weights as {source}: all {values:#value} compared are equal.",
        "same-rounded": "{model} and {source} are the same but for rounding to {formats:list}: {lost:count} of {values:#value} differ.",
        "equal-part": "{model} shares {values:#value} with {source}, all equal: {share:share} of the one, {other:share} of the other.",
        "adapter-beside": "{bearer} is {other} with an unmerged adapter of rank {rank:count}: all {values:#value} compared are equal.",
        "relayered": (
            "{model} is made of layers of {source}, {layers:count} of them moved or repeated: all {values:#value} compared are equal."
        ),
        # rounded copies
        "quantized-steps": "{model} is a quantized copy of {source}, a step function of its values, {distance:share} away from it.",
        "quantized": (
            "{model} is {source} quantized to {methods:list}: the error is {error:share} of the norm in {read:count} of "
            "{tensors:#quantized tensor}, {ratio:times} that of rounding."
        ),
        "quantized-or-trained": (
            "{model} is {source}, or a model trained from it, quantized to {methods:list}: the error is {error:share} of the norm in "
            "{read:count} of {tensors:#quantized tensor}, {ratio:times} that of rounding."
        ),
        "quantized-trained": (
            "{model} was trained from {source}, or both from a common ancestor, and quantized to {methods:list}: "
            "{changed:#tensor} that are not quantized changed ({names:first}); the error is {error:share} of the "
            "norm, {ratio:times} that of rounding."
        ),
        "quantized-no-grid": "{model} is {source} quantized to {methods:list}, as far as its error tells: {error:share} of the norm.",
        "quantized-damaged": "{model} is {source} quantized to {methods:list}, except for {odd:#tensor} with other values ({names:first}).",
        # derived
        "quantized-derived": (
            "{model} is a quantized copy of a model that was trained from {source}, has an ancestor in common with it, "
            "or was rounded before: its error is {error:share} of the norm, {ratio:times} that of rounding."
        ),
        "siblings": (
            "{model} and {source} are quantized copies of one model, or one was made from the other by more than rounding: they are "
            "{distance:share} of the norm apart."
        ),
        "derived": "{model} was trained from {source}, or both from a common ancestor: the difference is {distance:share} of its norm.",
        "derived-beside-matrices": (
            "{model} was trained from {source}, or both from a common ancestor: all {values:#value} compared in matrices are equal, "
            "those of norms or biases are not."
        ),
        "similar": "{model} was trained from one of {sources:list}, or from a common ancestor: {source} is nearest, {distance:share} away.",
        "pruned": "{model} is {source} pruned: {zeroed:share} of the values became zero, {equal:share} are equal in bf16.",
        "unpruned": "{source} is {model} pruned: {zeroed:share} of its values became zero, {equal:share} are equal in bf16.",
        "moved": "{model} was trained from {source}, or both from a common ancestor, with {layers:#layer} moved or repeated.",
        "replaced": "{model} was trained from {source}, or a common ancestor, except for {odd:#tensor} with other values ({names:first}).",
        "damaged": "{odd:count} of {tensors:#tensor} of {model} hold other values than {source} ({names:first}); {kept:count} are equal.",
        "scaled": "{model} has the values of {source}, in {tensors:#tensor} times a factor or plus a constant ({names:first}).",
        "reordered": "{model} has the values of {source}, in {tensors:#tensor} in another order or under other names ({names:first}).",
        # merges and stacks
        "merge": "{model} is a merge, up to rounding: {recipe:list}.",
        "merge-exact": (
            "{model} is a merge: {exact:share} of the {values:#value} tested, of {all:count}, are exactly {recipe:list}, rounded."
        ),
        "merge-partly": "{model} is a merge and more: {recipe:list}, which leaves {residual:share} of the norm unexplained.",
        "stack": "{model} is a stack of layers of {sources:list}: {layers:#layer} equal theirs bit for bit.",
        "stack-tensors": "{model} mixes {sources:list}: each of {tensors:#tensor} equals that of one of them, bit for bit.",
        "stack-fitted": "{model} is a stack of layers of {sources:list}, as far as the fits of {layers:#layer} tell.",
        # no relation, or not decided
        "unrelated": "{model} is not related, weight by weight, to {sources:list}.",
        "few-values": "Not decided: {model} and {source} share {values:#value}, too few to tell.",
        "few-related": "Not decided: only {matrices:#matrix|matrices} of {model}, {share:share} of the values, are related to {source}.",
        "common-values": "Not decided: {model} and {source} share zeros, common values or a structure, which any two models may.",
        "slightly-similar": "Not decided: the signs of {model} and {source} correlate by {agreement:magnitude}, which may be chance.",
        # advice
        "use-either": "Use either of the two: {source} holds the same weights.",
        "keep-unrounded": "Keep the one that was not rounded to {formats:list}: values of the other lost digits.",
        "use-unrounded": "Use the weights that both were rounded from, if you can find them: each has lost other digits.",
        "compare-all": "Compare all values in exact mode before you use one in place of the other.",
        "use-source": "Where precision matters, use {source}: this copy was rounded.",
        "compare-source": "Compare both with the model from which they were quantized.",
        "other-candidates": "Try other candidates, with tensors of the same names and shapes.",
        "read-all": "Try other candidates, or read everything in exact mode.",
        "list-layers": "List {parents:list} under base_model in the model card, with the layers of each.",
        "name-base": "Check that the model card names {parents:list} under base_model.",
        "name-one": "Check that the model card names one of {parents:list} under base_model.",
        "requantize": "Quantize again what is not the source's: {odd:#tensor}.",
        "repair": "Repair {tensors:#tensor} before you use it: training does not leave such values.",
        # what changes how the numbers are to be read
        "unseen": "None of the {blocks:#block} read differs: at most {unseen:share} of all blocks do, at 95% confidence.",
        "non-finite": "{values:#value} of {model} NaN or infinite where {source} has a number: left out of distances and fits.",
        "calibrated": "Calibrated methods are farther from the source than rounding on purpose: tensors are held against each other.",
        "scaled-channels": (
            "Channels of {tensors:#tensor} are scaled, as AWQ scales them between norms and matrices: errors are those that are left once "
            "the factors are undone."
        ),
        "lacks": "{model} lacks {tensors:#tensor} of {source}: {names:names}.",
        "not-reordered": (
            "Rows of {tensors:#query or key|queries and keys} of {model}, such as {name:name}, are in the order of {source}: llama.cpp "
            "reads them in that of rotary pairs, and computes something else. Convert {source} again."
        ),
        "positions": "Weights are compared position by position: permuted neurons or rotated weights are not recognised.",
        "one-run": "Checkpoints of one training run can look like this merge.",
        "not-told-apart": "{names:list} are too similar to tell apart: only the sum of their weights is known.",
        "joint-rows": "Candidates have different numbers of rows: the joint fit uses the rows that all have.",
        "not-compared": "Not compared, because no matrix matches by name and shape, or all that do are constant: {names:list}.",
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
        "lost-runs": "{values:#value}, {share:share}, in runs that are not the source's",
        "by-channel": "its channels are scaled, and a norm by the inverse",
        "by-own-channel": "its channels are scaled, and another matrix by the inverse",
        "by-unread-channel": "its channels may be scaled: what undoes their factors could not be compared",
        "with-channels": "scaled with the channels of the matrices around it",
        "plus-one": "1 is added, as llama.cpp stores norms that are applied as 1 + weight",
        "unknown-channels": "its channels may be scaled: too few values were read to tell",
        "lost-channels": "{channels:count} of {all:#channel} are not the source's",
        "not-undone": "its factors and those of {pair:name} multiply to {factor:magnitude} instead of 1: one of the two is scaled",
        "lost-rows": "{rows:count} of {all:#row} are not the source's",
        "steps": "a step function of the source, as rounding to a coarser grid makes",
        "of-another": "the values of {name:name}",
        "apart": "both are roundings of the same values, the source's to {to}",
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


def recipe(parents: "Sequence[Parent]") -> tuple[str, ...]:
    """Write the terms of a merge, the largest weight first, each with half its interval unless three digits are certain."""
    return tuple(f"{each.weight:.3f}{_margin(each)} x {each.ref}" for each in sorted(parents, key=lambda each: -each.weight))


def _margin(parent: "Parent") -> str:
    margin = max(parent.high - parent.weight, parent.weight - parent.low)
    return "" if margin < 0.0005 else f" ± {margin:.3f}" if margin < 1 else " (uncertain)"


def tiles(report: "ParentsReport") -> list[Tile]:
    """Return the relation, how many values are equal, how far the model is from the candidate or a fit, and what proves it."""
    found = [relation(report)]
    if report.verdict == "quantized-copy" and report.quantized is not None:
        return [*found, *_of_copy(report, report.quantized)]
    if report.verdict == "merge":
        found += _of_merge(report)
    elif report.verdict == "stack" or report.layer_map:
        found += [equal_values(report), _layers(report)]
    else:
        found += [equal_values(report), *_of_candidate(report, report.candidates[0])]
    broken = [row for row in report.conversion if row.damaged] if is_copy(report.conversion) else []
    if broken:
        detail = f"{_first_three([f'{row.name}: {row.relation}' for row in broken])}."
        found.append(Tile(label="Damaged", value=plural(len(broken), "tensor"), kind="warning", detail=detail))
    return found


def _first_three(names: Sequence[str]) -> str:
    return "; ".join(names[:3]) + (f"; {len(names) - 3:,} more" if len(names) > 3 else "")


def relation(report: "ParentsReport") -> Tile:
    """Return the relation, with the kind of evidence for it."""
    return Tile(label="Relation", value=_RELATIONS[report.verdict], kind=_proof(report, "inference"))


def equal_values(report: "ParentsReport") -> Tile:
    """Return how many values of the best candidate's matrices are equal."""
    best = report.candidates[0]
    detail = f"In bf16, of {plural(best.compared, 'value')} of {best.ref}; by chance {share(best.equal_by_chance)}."
    return _figure("Matrices equal", best.equal_share, _measured(report), detail, f"Nothing of {best.ref} can be compared.")


def _of_candidate(report: "ParentsReport", best: "Candidate") -> Iterator[Tile]:
    detail = f"|X - P| / |P| for {best.ref}; cosine {cosine(best.cosine)}, by chance 0 ± {magnitude(best.cosine_null)}."
    yield _figure("Distance", best.distance, _measured(report), detail, "The values of one side are all zero, or none could be compared.")
    detail = f"Of {plural(best.telling, 'value')} neither zero nor frequent on both sides; by chance {share(best.telling_by_chance)}."
    why = f"All values of {best.ref} are zero, frequent on both sides, or in smooth rows."
    yield _figure("Equal uncommon values", best.telling_equal, _proof(report, "fact"), detail, why)


def _of_copy(report: "ParentsReport", copy: "QuantizedCopy") -> Iterator[Tile]:
    why = f"Values of {copy.method} have no steps."
    among = f"{copy.tensors_read:,} of {plural(copy.tensors_stored, 'quantized tensor')}"
    plain = " whose channels are not scaled" if copy.channels_scaled else ""
    detail = f"Of the values of {among}{plain}, from {report.candidates[0].ref}; {copy.bits_per_weight:.3g} bits per weight."
    why = "Channels of all tensors are scaled." if copy.channels_scaled else why
    yield _figure("Within half a step", copy.within_half_step, _measured(report), detail, why)
    rounding = "" if copy.ratio is None else f"; {times(copy.ratio)} times that of rounding to nearest, {share(copy.error_of_nearest)}"
    yield _figure("Error", copy.error, _measured(report), f"|X - P| / |P|{rounding}.", "The source's values are all zero.")
    for label, names, start in (("Not the source's", copy.not_source, ""), ("Missing", copy.lacks, "The copy lacks ")):
        if names:
            yield Tile(label=label, value=plural(len(names), "tensor"), kind="warning", detail=f"{start}{_first_three(names)}.")


def _of_merge(report: "ParentsReport") -> Iterator[Tile]:
    fit = report.fit
    exact, residual = (fit.exact_share, fit.residual) if fit is not None else (None, None)
    detail = f"Values that equal the combination, rounded as stored; by chance {share(fit.exact_by_chance if fit else None)}."
    why = "The matrices are stored in several dtypes, or in one whose rounding is not tested."
    yield _figure("Exact values", exact, _proof(report, "fact"), detail, why)
    detail = f"|X - fit| / |X|; rounding to the stored dtype alone leaves {share(fit.rounding if fit else None)}."
    yield _figure("Left unexplained", residual, "estimate", detail, "No candidate has enough of the model's matrices to be fitted.")


def _layers(report: "ParentsReport") -> Tile:
    exact, of = all(row.equal_share == 1 for row in report.layer_map), Counter(row.ref for row in report.layer_map)
    detail = f"{'; '.join(f'{number:,} of {ref}' for ref, number in of.items())}."
    return Tile(label="Layers matched", value=count(len(report.layer_map)), kind="proof" if exact else "inference", detail=detail)


def _proof(report: "ParentsReport", otherwise: str) -> str:
    return "proof" if report.proof is not None else "undecided" if report.verdict == "undecided" else otherwise


def _measured(report: "ParentsReport") -> str:
    return "fact" if report.unseen is None else "estimate"


def _figure(label: str, value: float | None, kind: str, detail: str, why: str) -> Tile:
    """Return the tile of a share, or that it cannot be told, and why."""
    if value is None:
        return Tile(label=label, value="Cannot tell", kind="undecided", detail=why)
    return Tile(label=label, value=share(value), kind=kind, detail=detail)
