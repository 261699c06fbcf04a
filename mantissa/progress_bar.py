"""Draws a progress bar over the items of an analyzer, on a terminal or in a notebook."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

from analyzers.base import Progress
from analyzers.terminal import printable


def with_bar(items: Iterator[Any], name: str) -> Iterator[Any]:
    """Yield ``items`` and draw their progress: as a widget in a notebook with ipywidgets, else as text on stderr."""
    from tqdm.auto import tqdm

    with closing(items), tqdm(unit="B", unit_scale=True, desc=printable(name[:40]), leave=False) as bar:  # type: ignore[type-var]
        for item in items:
            if isinstance(item, Progress):
                bar.unit = "B" if item.unit == "bytes" else f" {item.unit}"
                bar.total = item.total or None
                bar.update(item.done - bar.n)
            yield item
