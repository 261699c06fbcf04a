"""Shows the progress of a run in the place of its result: the step, how far it is, the time taken and the time left."""

import time

from analyzers.core.request import Progress
from components.text import numbers, render

# Seconds before the time left is shown, since earlier estimates are erratic.
_SETTLED_SECONDS = 1.0


class Meter:
    """A renderer of progress as HTML."""

    def __init__(self) -> None:
        self._began = self._started = time.monotonic()
        self._unit = ""
        self._first = 0.0

    def waiting(self) -> str:
        """Return the HTML before the first progress."""
        return self._card("Starting", "", None)

    def show(self, progress: Progress) -> str:
        """Return the HTML for ``progress``."""
        now = time.monotonic()
        share = min(1.0, progress.done / progress.total) if progress.total > 0 else None
        if progress.unit != self._unit:  # phases of an analysis differ in speed, so each has its own estimate
            self._unit, self._started, self._first = progress.unit, now, share or 0.0
        return self._card(progress.note or "Reading", self._how_far(progress, share, now - self._started), share)

    def _how_far(self, progress: Progress, share: float | None, seconds: float) -> str:
        if share is None:
            return ""
        show = numbers.size if progress.unit == "bytes" else numbers.count
        unit = "" if progress.unit == "bytes" else f" {progress.unit}"
        text = f"{share:.0%}, {show(progress.done)} of {show(progress.total)}{unit}"
        if seconds < _SETTLED_SECONDS or not self._first < share < 1:
            return text
        return f"{text}, about {numbers.duration(seconds * (1 - share) / (share - self._first))} left"

    def _card(self, note: str, how_far: str, share: float | None) -> str:
        taken = time.monotonic() - self._began
        elapsed = f"{taken:.0f} s" if taken >= 1 else ""
        note = note[:1].upper() + note[1:]
        return render("templates/progress.html", note=note, how_far=", ".join(filter(None, (how_far, elapsed))), share=share)
