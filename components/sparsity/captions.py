"""What the figures show, in a sentence each."""

from analyzers.update_sparsity.report import SparsityReport
from components.text import numbers

HEAT_MAP = (
    "Sparsity of each layer and role, in percent: the share of weights that are in bf16 what they were. Embeddings and whatever else "
    "belongs to no layer stand on the left."
)
ROLES = "Sparsity of each role over all layers; the line goes from its least to its most sparse tensor."
ULPS = "How many steps of bf16 lie between base and tuned, on a logarithmic axis. 0 is a weight that did not change."
STEPS = (
    "How sparse each checkpoint is, compared with the base and with the checkpoint before. Click a role's name to add it. "
    "Checkpoints are numbered as in the table."
)
OVERLAP = (
    "Of the weights that either of two checkpoints changed, the share that both changed, in percent (Jaccard). Above the diagonal: what "
    "it would be if the two had nothing to do with each other."
)


def relative(report: SparsityReport) -> str:
    """What stands above the histogram of relative updates."""
    nonfinite = report.magnitudes.nonfinite
    left_out = f" {nonfinite:,} pairs with a NaN or an infinity are left out." if nonfinite else ""
    return (
        "By which share of its size a weight moved, among those that moved at all. bf16 can tell two numbers apart that differ by at least "
        f"2^-8 to 2^-7 of their size: smaller updates are lost unless they tip the rounding.{left_out}"
    )


def spectral(report: SparsityReport) -> str:
    """What stands above the table of matrices taken apart."""
    chance = f" (by chance {numbers.share(report.spectral[0].mask_share)})" if report.spectral else ""
    return (
        "The update of each matrix, and how far its leading singular subspaces turned (largest and mean principal angle); which share "
        f"of the changed elements lies in the masks of the principal and of the smallest weights{chance}."
    )
