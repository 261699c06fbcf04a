"""Names of the checkpoints as requested, and captions; plain text."""

from analyzers.update_sparsity.report import SparsityReport
from components.text import numbers
from components.text.plain_text import shown

_SHORT = 34


def base_name(report: SparsityReport) -> str:
    """The base, plain text."""
    return shown(report.request.base)


def tuned_names(report: SparsityReport) -> list[str]:
    """The tuned checkpoints in order, plain text."""
    return [shown(name) for name in report.request.tuned]


def read_whole(report: SparsityReport) -> bool:
    """Whether every matched value was read, as quick mode does with small checkpoints: then nothing is estimated."""
    return report.values_compared == report.total_parameters


def short(name: str) -> str:
    """A reference without its organisation, for a figure; plain text."""
    return shown(name.split("/", 1)[-1].removeprefix("sample:"), _SHORT)


HEAT_MAP = (
    "Sparsity of each layer and role, in percent: the share of weights that are unchanged in bf16. Embeddings and other tensors "
    "that are not in a layer are on the left."
)
ROLES = "Sparsity of each role over all layers; the line goes from its least to its most sparse tensor."
ULPS = "Distance between base and tuned in bf16 ULPs, on a logarithmic axis. 0 is a weight that did not change."
STEPS = (
    "Sparsity of each checkpoint compared with the base and with the previous checkpoint. Click a role's name to add it. "
    "Checkpoints are numbered as in the table."
)
OVERLAP = "Jaccard index of the weights that two checkpoints changed, in percent. On the right: its value if the two were independent."


def relative(report: SparsityReport) -> str:
    """The sentence above the histogram of relative updates."""
    nonfinite = report.magnitudes.nonfinite
    excluded = f" {nonfinite:,} pairs with a NaN or an infinity are excluded." if nonfinite else ""
    return (
        "How far weights moved relative to their size, among those that moved. The ULP of bf16 is 2^-8 to 2^-7 of a value: smaller updates "
        f"are lost unless they cross a rounding boundary.{excluded}"
    )


def spectral(report: SparsityReport) -> str:
    """The sentence above the table of decomposed matrices."""
    chance = f" (by chance {numbers.share(report.spectral[0].mask_share)})" if report.spectral else ""
    return (
        "Rank of the update of each matrix, principal angles (largest and mean) between the leading singular subspaces of base and tuned, "
        f"and the share of the changed elements in the masks of the principal and of the low-magnitude weights{chance}."
    )
