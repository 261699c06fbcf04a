"""What models, commits and texts are called in the result of any analyzer; plain text."""

from collections.abc import Mapping
from typing import Any

from analyzers.base import CheckpointFacts
from components.text.plain_text import shown

_COMMIT = 12


def model_name(report: Any) -> str:
    """The model of a report about one, as asked for, with its revision."""
    return shown(report.request.model)


def commit(checkpoint: CheckpointFacts) -> str:
    """The beginning of the commit; nothing for a sample, which has none."""
    return "" if checkpoint.ref.startswith("sample:") else shown(checkpoint.commit[:7])


def tensor_name(row: Any) -> str:
    """A row of a table of tensors, which may stand for several."""
    name = shown(row.name)
    return name if row.tensors == 1 else f"{name} ({row.tensors:,} tensors)"


def source_name(source: str, ours: Mapping[str, str], pinned: str | None = None) -> str:
    """Where a text is from: what ``ours`` calls it, or else the dataset; with the beginning of its commit where ``pinned`` is given."""
    if source in ours:
        return ours[source]
    return shown(source) + (f" at {shown(pinned[:_COMMIT])}" if pinned else "")
