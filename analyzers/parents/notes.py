"""Writes the notes of a report: the limits of its answer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from analyzers.checkpoints import Checkpoint, Unmatched, account_notes, layout_notes
from analyzers.parents.combination import Fitted
from analyzers.parents.report import Candidate


@dataclass(frozen=True, slots=True)
class Compared:
    """The candidates that were compared. numbers: their sides; unmatched: what each could not simply be compared on."""

    numbers: Sequence[int]
    unmatched: Sequence[Unmatched]
    fit: Fitted | None


def notes(
    sides: Sequence[Checkpoint], names: Sequence[str], candidates: Sequence[Candidate], compared: Compared | None, verdict: str, exact: bool
) -> Iterator[str]:
    """Yield notes on what was not compared, what cannot be decided, and what was sampled. sides: the model and all candidates."""
    empty = [row.ref for row in candidates if not row.compared]
    if empty:
        yield (
            f"{', '.join(empty[:5])}: not compared, since no matrix matches one of the model by name and shape, or all that do are "
            "constant in the model."
        )
    refs = [sides[number].ref for number in compared.numbers] if compared else []
    if compared and compared.fit:
        for i, others in compared.fit.alike.items():
            if others:
                alike = ", ".join(refs[j] for j in others)
                yield f"{alike} and {refs[i]} are too similar to tell apart here: only their combined weight is known."
    if verdict in ("unrelated", "undecided"):
        yield "Weights are compared where they stand: permuted neurons, or rotated weights, would not be recognised."
    unmatched = compared.unmatched if compared else ()
    for found, ref in zip(unmatched, refs, strict=True):
        yield from layout_notes(found, "the model", ref)
    if len(refs) > 1 and any(found.resized for found in unmatched):
        yield "Each candidate is compared on all rows that it shares with the model; the joint fit uses the rows that all have."
    for name, side in zip(names, sides, strict=True):
        yield from (f"{name}: {note}" for note in account_notes(side, side.tensors))
    if not exact:
        if any(found.relaid or found.tied for found in unmatched):
            yield "Other layouts and tied copies were recognised by samples of their values; exact mode compares all of them."
        yield "Quick mode compares a sample: a difference in few values can be missed."
