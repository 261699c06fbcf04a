"""Draws the progress of an analysis with a bar of tqdm."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

from analyzers.core.request import Progress
from analyzers.core.terminal import printable

COMPILING = "compiling once"
"""The note of progress while loops are compiled: see `numerics.compilation`."""


def drawn(items: Iterator[Any], name: str, tqdm: Any, **settings: Any) -> Iterator[Any]:
    """Yield ``items``, and draw their progress with a bar of the class ``tqdm``, which also says when loops are compiled."""
    from analyzers.numerics.compilation import on_compiling

    name = printable(name[:40])
    bar = tqdm(unit="B", unit_scale=True, desc=name, leave=False, **settings)
    with closing(items), bar, on_compiling(lambda: bar.set_description_str(f"{name}, {COMPILING}")):  # type: ignore[type-var]
        for item in items:
            if isinstance(item, Progress):
                bar.set_description_str(name, refresh=False)
                bar.unit = "B" if item.unit == "bytes" else f" {item.unit}"
                bar.total = item.total or None
                bar.update(item.done - bar.n)
            yield item
