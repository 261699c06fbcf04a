"""What the library says of the training precision of a model; nothing outside the app, which has a library."""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from components.library import Consensus

_sources: "list[Callable[[str], Consensus | None]]" = []


def set_source(source: "Callable[[str], Consensus | None] | None") -> None:
    """Set what `consensus` asks; None: nothing."""
    _sources[:] = [] if source is None else [source]


def consensus(model: str) -> "Consensus | None":
    """Return the consensus of the labels of a model; None without a library, or for a sample, which has no labels."""
    return None if not _sources or model.startswith("sample:") else _sources[0](model)
