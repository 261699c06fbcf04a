"""Progress of precision variants: the runs so far and their times."""

import time

from analyzers.base import Progress
from components.running.progress import Meter
from components.text import numbers
from components.text.plain_text import html


class VariantMeter(Meter):
    """Lists the runs of the model below the bar, the current one last."""

    def __init__(self) -> None:
        super().__init__()
        self._began: dict[str, float] = {}
        self._took: dict[str, float] = {}

    def show(self, progress: Progress) -> str:
        """The progress in HTML; also records finished runs when nothing is shown."""
        from analyzers.precision_variants import VariantProgress

        if isinstance(progress, VariantProgress):
            now = time.monotonic()
            began = self._began.setdefault(progress.variant, now)
            if progress.finished:
                self._took[progress.variant] = now - began
            # a note begins with a name, which must not be capitalized
            progress = progress.model_copy(update={"note": f"running {progress.note}"})
        return super().show(progress)

    def found(self, progress: Progress) -> str:
        """The runs, in HTML."""
        rows = "".join(f"<li>{html(name)}<span>{self._how_long(name)}</span></li>" for name in self._began)
        return f'<ul class="m-ran">{rows}</ul>' if rows else ""

    def _how_long(self, name: str) -> str:
        return numbers.duration(self._took[name]) if name in self._took else "running"
