"""Writes the answer of parents in a sentence or two, and the advice."""

from typing import TYPE_CHECKING

from analyzers.base import NextStep
from analyzers.formatting import listed, share

if TYPE_CHECKING:
    from analyzers.parents.report import ParentsReport


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
    more = ", or read everything in exact mode" if report.values_compared and report.request.mode != "exact" else ""
    relaid = any(row.form not in ("", "as stored") for row in report.conversion)
    use = "the one whose layout your program loads" if relaid else "either of the two"
    if report.unseen is None:
        same = f"Use {use}: {named} holds the same weights."
    else:
        same = f"Compare all values in exact mode before you use one for the other{_bound(report)}."
    advice = {
        "same-weights": same if report.whole else f"Compare the rest before you use it for {named}: only a part is known to be the same.",
        "quantized-copy": f"Where precision matters, use {named}: this copy was rounded.",
        "unrelated": "Name other candidates, with tensors of the same names and shapes.",
        "undecided": f"Name other candidates{more}.",
        "stack": f"List {named} under base_model in the model card, with the layers of each.",
    }.get(report.verdict, f"Check that the model card names {named} under base_model.")
    return NextStep(advice, "dtype", report.checkpoint.ref)


def none_differs(blocks: int, unseen: float) -> str:
    """Say what a sample without a difference implies for the whole."""
    return f"none of the {blocks:,} blocks read differs, so at most {share(unseen)} of all blocks do, at 95% confidence"


def _bound(report: "ParentsReport") -> str:
    return "" if report.blocks is None or report.unseen is None else f": {none_differs(report.blocks, report.unseen)}"
