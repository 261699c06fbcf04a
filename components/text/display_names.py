"""Returns display names of models, commits and texts, shared by all analyzers; plain text."""

from collections.abc import Mapping
from typing import Any

from analyzers.core.report import CheckpointFacts
from components.text.plain_text import shown

_COMMIT = 12


def model_name(report: Any) -> str:
    """Return the model of a single-model report, as requested, with its revision."""
    return shown(report.request.model)


def commit(checkpoint: CheckpointFacts) -> str:
    """Return the abbreviated commit; empty for a sample, which has none."""
    return "" if checkpoint.ref.startswith("sample:") else shown(checkpoint.short_commit(7))


def source_name(source: str, ours: Mapping[str, str], pinned: str | None = None) -> str:
    """Return the source of a text: its name in ``ours``, or the dataset; with its abbreviated commit if ``pinned`` is given."""
    if source in ours:
        return ours[source]
    return shown(source) + (f" at {shown(pinned[:_COMMIT])}" if pinned else "")
