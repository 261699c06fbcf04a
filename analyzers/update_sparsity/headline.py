"""What to do about the answer of update sparsity. The answer itself is the report's statement."""

from typing import TYPE_CHECKING

from analyzers.formatting import share

if TYPE_CHECKING:
    from analyzers.update_sparsity.report import SparsityReport

# A changed bf16 value and its index take 6 bytes; storing every value takes 2.
_SPARSE_COST = 3


def advice(report: "SparsityReport") -> str:
    """What the share of changed weights means for training or for storing the update."""
    changed = None if report.sparsity is None else 1 - report.sparsity
    if changed is None:
        return "Name two checkpoints of the same architecture."
    if changed == 0 and not report.swallowed.count:
        return "Check that the right checkpoint was uploaded: nothing was trained."
    if report.swallowed.meaningful and report.swallowed.count:
        return f"Keep fp32 master weights: {share(report.swallowed.share)} of the weights changed only below bf16 resolution."
    if _SPARSE_COST * changed < 1:
        return f"Ship the update alone: changed values with their indices take about {share(_SPARSE_COST * changed)} of a bf16 checkpoint."
    return f"Ship the whole checkpoint: with {share(changed)} of the weights changed, a list of changes would be larger."
