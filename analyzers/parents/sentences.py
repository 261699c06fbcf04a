"""Sentences that answer parents, the advice that follows, and the limits of the answer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analyzers.base import NextStep
from analyzers.checkpoints import Checkpoint, Unmatched, account_notes, layout_notes
from analyzers.formatting import listed, share
from analyzers.parents.construction import BY_CONSTRUCTION

if TYPE_CHECKING:
    from analyzers.parents.combination import Fitted
    from analyzers.parents.report import Candidate, ParentsReport


def headline(report: "ParentsReport") -> str:
    """Write the statement, and how far it reaches."""
    reach = report.reach()
    if reach and report.verdict == "same-weights":
        read = "compared" if report.unseen is None else "that was read"
        return f"Every value {read} equals that of {listed(report.parents)} once both have the same dtype{_bound(report)}. {reach}"
    return f"{report.statement} {reach}" if reach else report.statement


def next_step(report: "ParentsReport") -> NextStep:
    """Advise what to do after the verdict, and link the passport of the model."""
    named = listed(report.parents)
    more = ", or read everything in exact mode" if report.values_compared and report.unseen is not None else ""
    relaid = any(row.form not in ("", "as stored") for row in report.conversion)
    use = "the one whose layout your program loads" if relaid else "either of the two"
    rounded = {row.to for row in report.conversion if row.relation == "rounded" and row.to}
    if rounded:
        same = f"Keep the one that was not rounded to {listed(sorted(rounded))}: values of the other lost digits."
    elif report.unseen is None:
        same = f"Use {use}: {named} holds the same weights."
    else:
        same = f"Compare all values in exact mode before you use one for the other{_bound(report)}."
    advice = {
        "same-weights": same if report.whole else f"Compare the rest before you use it for {named}: only a part is known to be the same.",
        "quantized-copy": f"Where precision matters, use {named}: this copy was rounded.",
        "unrelated": "Try other candidates, with tensors of the same names and shapes.",
        "undecided": f"Try other candidates{more}.",
        "stack": f"List {named} under base_model in the model card, with the layers of each.",
        "derived": f"Check that the model card names {'one of ' if len(report.parents) > 1 else ''}{named} under base_model.",
    }
    if report.statement.startswith(BY_CONSTRUCTION):
        advice["derived"] = "Compare the base with its adapter (sparsity) to see what a merge keeps of it."
    said = advice.get(report.verdict, f"Check that the model card names {named} under base_model.")
    return NextStep(said, "dtype", report.checkpoint.ref)


def none_differs(blocks: int, unseen: float) -> str:
    """Say what a sample without a difference implies for the whole."""
    return f"none of the {blocks:,} blocks read differs, so at most {share(unseen)} of all blocks do, at 95% confidence"


def _bound(report: "ParentsReport") -> str:
    return "" if report.blocks is None or report.unseen is None else f": {none_differs(report.blocks, report.unseen)}"


@dataclass(frozen=True, slots=True)
class Compared:
    """The candidates that were compared. numbers: their sides; unmatched: what each could not simply be compared on."""

    numbers: Sequence[int]
    unmatched: Sequence[Unmatched]
    fit: "Fitted | None"


def notes(
    sides: Sequence[Checkpoint],
    names: Sequence[str],
    candidates: Sequence["Candidate"],
    compared: Compared | None,
    verdict: str,
    exact: bool,
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
        yield "Weights are compared position by position: permuted neurons or rotated weights would not be recognised."
    unmatched = compared.unmatched if compared else ()
    for found, ref in zip(unmatched, refs, strict=True):
        yield from (note.text for note in layout_notes(found, "the model", ref))
    if len(refs) > 1 and any(found.resized for found in unmatched):
        yield "Each candidate is compared on all rows that it shares with the model; the joint fit uses the rows that all have."
    for name, side in zip(names, sides, strict=True):
        yield from (f"{name}: {note.text}" for note in account_notes(side, side.tensors))
    if not exact:
        if any(found.relaid or found.tied for found in unmatched):
            yield "Other layouts and tied copies were recognised by samples of their values; exact mode compares all of them."
        yield "Quick mode compares a sample: a difference in few values can be missed."
