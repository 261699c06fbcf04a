"""The words of compare: a template per code, beyond those of the reports that it is composed of, and the tiles."""

from typing import TYPE_CHECKING

from analyzers.core.formatting import share
from analyzers.core.notes import Tile
from analyzers.core.words import Words
from analyzers.parents.words import equal_values, relation

if TYPE_CHECKING:
    from analyzers.compare.report import CompareReport

WORDS = Words(
    {
        "derived": (
            "{model} is derived from {source}, or both come from a common ancestor: {changed:share} of {values:#value} differ from "
            "{base} at bf16 resolution."
        ),
        "other-models": "Compare {model} with other models of the same architecture.",
        "related-too": "Related too: {names:list}.",
        "no-relation": "No relation found to {names:list}.",
        "others-not-asked": "Only {model} was compared with each of the others, which may be related to each other.",
        "not-counted": "What changed was not counted: {why}",
    }
)


def tiles(report: "CompareReport") -> list[Tile]:
    """Return the relation, how much changed, how much is equal, and whether the weights show which model came first."""
    return [relation(report.parents), _changed(report), equal_values(report.parents), *_direction(report)]


def _changed(report: "CompareReport") -> Tile:
    label, counted = "Changed at bf16 resolution", report.sparsity
    if counted is None or counted.update_fraction is None:
        return Tile(label=label, value="Not counted", kind="undecided")
    kind = "estimate" if counted.sampled else "fact"
    detail = f"From {counted.base.ref} to {counted.tuned[-1].ref}."
    return Tile(label=label, value=share(counted.update_fraction), kind=kind, detail=detail)


def _direction(report: "CompareReport") -> list[Tile]:
    if report.relation.kind in ("same-weights", "unrelated", "undecided"):
        return []
    if report.relation.direction == "shown":
        return [Tile(label="Direction", value="Shown by the weights", kind=relation(report.parents).kind)]
    value = "As given" if report.relation.direction == "assumed" else "Not shown"
    return [Tile(label="Direction", value=value, kind="undecided", detail="Weights do not show which of them came first.")]
