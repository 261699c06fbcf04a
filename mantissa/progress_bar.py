"""Draws a progress bar over the items of an analyzer, on a terminal or in a notebook."""

from collections.abc import Iterator
from typing import Any

from analyzers.core.progress_bar import drawn
from analyzers.core.terminal import printable


def with_bar(items: Iterator[Any], name: str) -> Iterator[Any]:
    """Yield ``items`` and draw their progress: as a widget in a notebook with ipywidgets, else as text on stderr."""
    from tqdm.auto import tqdm

    yield from drawn(items, tqdm(unit="B", unit_scale=True, desc=printable(name[:40]), leave=False))
