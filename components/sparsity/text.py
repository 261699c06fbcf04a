"""Names of checkpoints as requested, and captions; plain text."""

from analyzers.update_sparsity.report import SparsityReport
from components.text.plain_text import shown
from components.text.render import Sentences

_SHORT = 34


def base_name(report: SparsityReport) -> str:
    """Return the name of the base."""
    return shown(report.request.base)


def tuned_names(report: SparsityReport) -> list[str]:
    """Return the names of the tuned checkpoints, in order."""
    return [shown(name) for name in report.request.tuned]


def read_whole(report: SparsityReport) -> bool:
    """Return whether every matched value was read, as in quick mode with small checkpoints, so that nothing is estimated."""
    return report.values_compared == report.total_parameters


def short(name: str) -> str:
    """Return a reference without its organisation, for a figure."""
    return shown(name.split("/", 1)[-1].removeprefix("sample:"), _SHORT)


captions = Sentences("sparsity/templates/captions.txt", read_whole=read_whole)
