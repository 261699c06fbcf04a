"""Names of the checkpoints as requested, and captions; plain text."""

from analyzers.update_sparsity.report import SparsityReport
from components.text.plain_text import shown
from components.text.render import Sentences

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


captions = Sentences("sparsity/templates/captions.txt", read_whole=read_whole)
