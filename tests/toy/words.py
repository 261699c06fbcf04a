"""The words of the toy analyzer."""

from typing import Any

from analyzers.core.notes import Tile
from analyzers.core.words import Words

WORDS = Words({"counted": "{tensors:#tensor}.", "again": "Count them again."})


def tiles(report: Any) -> list[Tile]:
    """Return the one answer."""
    return [Tile(label="Tensors", value=str(report.counted), kind="fact")]
