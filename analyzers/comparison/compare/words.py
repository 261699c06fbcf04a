"""The words of compare: a template per code, beyond those of the reports that it is composed of, and the tiles."""

from typing import TYPE_CHECKING

from analyzers.comparison.parents.words import equal_values, relation
from analyzers.comparison.parents.words import tiles as tiles_of_parents
from analyzers.comparison.sparsity.words import changed_in_bf16
from analyzers.core.formatting import plural
from analyzers.core.notes import Tile
from analyzers.core.words import Words

if TYPE_CHECKING:
    from analyzers.comparison.compare.report import CompareReport
    from analyzers.comparison.sparsity.report import SparsityReport

FRONT = "copies"
WORDS = Words(
    {
        "pair": "One was trained from the other, or both from a common ancestor; {changed:share} of the weights changed in bf16.",
        "derived": "{model} was trained from {source}, or a common ancestor; {changed:share} of the weights changed in bf16 since {base}.",
        "similar": "Checkpoints of one run, or trainings from one start; {changed:share} changed in bf16 from {base} to {last}.",
        "nearest-copy": (
            "Of {copies:#quantized copy|quantized copies} of {source}, {nearest} is the nearest, {error:share} away, and for its size too."
        ),
        "ranked-copies": (
            "Of {copies:#quantized copy|quantized copies} of {source}, {nearest} is the nearest, {error:share} away; for its size it is "
            "{best}, {of_best:share} away in {bits:ratio} bits per weight."
        ),
        "other-models": "Compare {model} with other models of the same architecture.",
        "not-copies": "Not copies of {source}: {names:list}.",
        "related-too": "Related too: {names:list}.",
        "no-relation": "No relation found to {names:list}.",
        "others-not-asked": "Only {model} was compared with each of the others, which may be related to each other.",
    }
)


def tiles(report: "CompareReport") -> list[Tile]:
    """Return the relation, how much changed (else how much is equal), and whether the weights show which model came first."""
    counted = report.sparsity
    if report.relation.kind == "quantized-copy" and report.parents.quantized is not None:
        return [*tiles_of_parents(report.parents), *_direction(report)]
    changed = [_changed(counted)] if counted is not None and counted.update_fraction is not None else [equal_values(report.parents)]
    return [relation(report.parents), *changed, *_direction(report)]


def _changed(counted: "SparsityReport") -> Tile:
    label, value, kind, bounds = changed_in_bf16(counted)
    detail = f"From {counted.base.ref} to {counted.tuned[-1].ref}, of {plural(counted.values_compared, 'weight')} compared.{bounds}"
    return Tile(label=label, value=value, kind=kind, detail=detail)


def _direction(report: "CompareReport") -> list[Tile]:
    if report.relation.kind in ("same-weights", "unrelated", "undecided"):
        return []
    if report.relation.direction == "shown":
        return [Tile(label="Direction", value="Shown by the weights", kind=relation(report.parents).kind)]
    assumed = ": taken in the order given" if report.relation.direction == "assumed" else ""
    detail = f"Weights do not show which of them came first{assumed}."
    return [Tile(label="Direction", value="Not shown", kind="undecided", detail=detail)]
