"""Writes sentences on how each tensor came about, and on the parent of each layer of a stack."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from analyzers.formatting import listed, plural
from analyzers.parents.report import FAITHFUL, Conversion, MovedLayer, Relation
from analyzers.tensor_words import layer_range

# Relations of a tensor to its source, in words.
RELATIONS: dict[Relation, str] = {
    "equal": "bit for bit",
    "rounded": "rounded",
    "on-grid": "on a grid",
    "scaled": "times a factor",
    "zeroed": "zeros",
    "constant": "a constant",
    "truncated": "truncated",
    "swapped": "another tensor's values",
    "non-finite": "NaN or infinite",
    "differs": "differs",
    "unmatched": "no source",
}
# Relations that training also leaves, or without a source to compare with.
_NOT_DAMAGED: tuple[Relation, ...] = (*FAITHFUL, "differs", "unmatched")
_NAMED = 5


def relation(row: Conversion) -> str:
    """Return the relation in words: ``rounded to bf16``, ``rounded to int4 in groups of 32``."""
    return f"rounded to {row.to}" if row.to else RELATIONS[row.relation]


def damaged(row: Conversion) -> bool:
    """Return whether the tensor is broken in a way that no training causes."""
    return row.relation not in _NOT_DAMAGED


def damage_first(rows: Sequence[Conversion]) -> list[Conversion]:
    """Sort damaged tensors first, then those that differ or have no source, then the others, each in their order."""
    return sorted(rows, key=lambda row: (not damaged(row), row.relation in FAITHFUL))


def faithful_sentence(rows: Sequence[Conversion]) -> str:
    """Write a sentence on how many tensors are the source's, and which are not; empty without rows."""
    if not rows:
        return ""
    equal, faithful = (sum(row.relation in kinds for row in rows) for kinds in (FAITHFUL[:1], FAITHFUL))
    steps = sum(row.relation == "on-grid" and row.to is None for row in rows)
    faithful -= steps
    are = "is" if faithful == 1 else "are"
    if not faithful and not steps:  # of a model that is not much the candidate's, only unusual tensors are listed
        said = f"Only what training would not leave: {plural(len(rows), 'tensor')}"
    elif equal == faithful:
        said = f"{equal:,} of {plural(len(rows), 'tensor')} {are} the source's bit for bit"
    else:
        counts = {name: sum(row.relation == name for row in rows) - (steps if name == "on-grid" else 0) for name in FAITHFUL}
        parts = [f"{number:,} {RELATIONS[name]}" for name, number in counts.items() if number]
        said = f"{faithful:,} of {plural(len(rows), 'tensor')} {are} the source's: {listed(parts)}"
    if steps:
        one, more = "is a step function of the source", "are step functions of the source"
        said += f"; {plural(steps, one, more)}, as rounding leaves, which does not prove every value"
    broken = [row for row in rows if damaged(row)]
    others = [row for row in rows if not damaged(row) and row.relation not in FAITHFUL]
    said += f"; damaged: {_named(broken)}" if broken else ""
    return f"{said}{f'; not the same: {_named(others)}' if others else ''}."


def _named(rows: Sequence[Conversion]) -> str:
    more = len(rows) - _NAMED
    return ", ".join(f"{row.name} ({relation(row)})" for row in rows[:_NAMED]) + (f" and {more:,} more" if more > 0 else "")


class Run(NamedTuple):
    """Consecutive layers that are consecutive layers of one parent; ``first`` and ``last`` are None outside the layers."""

    first: int | None
    last: int | None
    ref: str
    source: int | None
    source_last: int | None

    @property
    def text(self) -> str:
        """The run in words: ``layers 0 to 7 are layers 4 to 11 of org/a``."""
        if self.first is None:
            return f"what is outside the layers is that of {self.ref}"
        source = layer_range(self.source, self.source_last)
        return f"{layer_range(self.first, self.last)} {'is' if self.first == self.last else 'are'} {source} of {self.ref}"


def layer_runs(rows: Sequence[MovedLayer]) -> list[Run]:
    """Return the layer map with consecutive layers joined."""
    return list(_runs(rows))


def _runs(rows: Sequence[MovedLayer]) -> Iterator[Run]:
    ordered = sorted(rows, key=lambda row: -1 if row.layer is None else row.layer)

    def together(entry: tuple[int, MovedLayer]) -> tuple[str, object, object]:
        place, row = entry
        if row.layer is None or row.source is None:
            return row.ref, place, None
        return row.ref, row.layer - place, row.source - row.layer

    for _, entries in groupby(enumerate(ordered), key=together):
        found = [row for _, row in entries]
        first, last = found[0], found[-1]
        yield Run(first.layer, last.layer, first.ref, first.source, last.source)
