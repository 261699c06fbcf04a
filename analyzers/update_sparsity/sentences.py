"""Sentences that answer update sparsity: the report's statement, and the advice that follows."""

from typing import TYPE_CHECKING

from analyzers.base import NextStep
from analyzers.coverage import unseen
from analyzers.formatting import share

if TYPE_CHECKING:
    from analyzers.update_sparsity.report import SparsityReport

# In multiples of the two bytes of a bf16 value: a changed value with an index of 4 bytes, and one bit per value that marks the changed
_LISTED, _MARKED = 3, 1 / 16


def headline(report: "SparsityReport") -> str:
    """Return the statement, and how far it reaches."""
    reach = report.reach()
    if not reach:
        return report.statement
    # statements are made before it is known how much was compared
    said = report.statement.replace(" of all weights are ", " of the weights compared are ")
    return f"{said} {reach}"


def next_step(report: "SparsityReport") -> NextStep:
    """Advise, and link to the passport of the fine-tune."""
    return NextStep(_advice(report), "dtype", report.tuned[-1].ref)


def _advice(report: "SparsityReport") -> str:
    """Say what the share of changed weights means for training or for storing the update."""
    changed = None if report.sparsity is None else 1 - report.sparsity
    if changed is None:
        return "Name two checkpoints of the same architecture."
    compared, about = "" if report.whole else " compared", "about " if report.interval else ""
    if changed == 0 and report.unmatched.moved_layers:
        return "Look at the order of the layers: their values are the base's, under other numbers, which makes another model."
    if changed == 0 and not report.swallowed.count and compared:
        return "Compare the other weights before you say that nothing was trained: those compared are the same on both sides."
    if changed == 0 and not report.swallowed.count and report.interval:
        bounded = f" (differences: {unseen(report.blocks, 1 - report.interval.low)})" if report.blocks else ""
        return f"Use exact mode before you say that nothing was trained{bounded}."
    if changed == 0 and not report.swallowed.count:
        return "Check that the right checkpoint was uploaded: nothing was trained."
    if report.swallowed.meaningful and report.swallowed.count:
        lost = share(report.swallowed.share)
        return f"Keep fp32 master weights: {about}{lost} of the weights{compared} changed only below bf16 resolution."
    with_what, cost = min(("their indices", _LISTED * changed), ("a bitmap", changed + _MARKED), key=lambda each: each[1])
    if cost < 1:
        of = "a bf16 checkpoint" if report.whole else "the weights compared, in bf16"
        return f"Ship the update alone: changed values with {with_what} take about {share(cost)} of {of}."
    return f"Ship the whole checkpoint: with {about}{share(changed)} of the weights{compared} changed, the changes alone take no less."
