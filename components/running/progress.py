"""Shows progress on the page: the current step, how far it is, and the remaining time."""

import time
from collections.abc import Sequence

from analyzers.core.request import Progress
from components.text import macros, numbers, render

_EVERY_SECONDS = 0.15
# Seconds before the remaining time is shown, since earlier estimates are erratic.
_SETTLED_SECONDS = 1.0


class Meter:
    """A renderer of progress as HTML, at a rate that looks live without flooding a slow connection."""

    def __init__(self, expected: str = "") -> None:
        """Show ``expected``, a phrase for the duration of the run, until the progress allows an estimate."""
        self._expected = expected
        self._started = time.monotonic()
        self._unit = ""
        self._shown = 0.0
        self._counting, self._first = False, 0.0

    @staticmethod
    def waiting(address: str = "", expected: str = "") -> str:
        """Return the HTML until the first progress, also while the job is queued. address: the page that makes the same request."""
        return _card("Starting", expected, None, address=address)

    @staticmethod
    def is_progress(html: str | None) -> bool:
        """Return whether ``html`` shows progress rather than an outcome."""
        return "<progress" in (html or "")

    def show(self, progress: Progress) -> str:
        """Return the HTML for ``progress``; "" if it follows the last one too soon."""
        now = time.monotonic()
        if progress.unit != self._unit:  # phases of an analysis differ in speed, so each has its own estimate
            self._unit, self._counting, self._shown = progress.unit, False, 0.0
        if not self._counting:  # a step that cannot be counted, such as loading, says nothing about the rest
            self._started, self._first = now, _share(progress) or 0.0
        self._counting = progress.total > 0
        if now - self._shown < _EVERY_SECONDS:
            return ""
        self._shown = now
        how_far = self._how_far(progress, now - self._started)
        return _card(progress.note or "Reading", how_far, _share(progress), self.found(progress))

    def found(self, progress: Progress) -> str:
        """Return preliminary findings as HTML below the bar. Analyzers override this; by default there are none."""
        return ""

    def _how_far(self, progress: Progress, seconds: float) -> str:
        share = _share(progress)
        if share is None:
            return self._expected
        show = numbers.size if progress.unit == "bytes" else numbers.count
        unit = "" if progress.unit == "bytes" else f" {progress.unit}"
        text = f"{share:.0%}, {show(progress.done)} of {show(progress.total)}{unit}"
        if seconds < _SETTLED_SECONDS or not self._first < share < 1:
            return text
        return f"{text}, about {numbers.duration(seconds * (1 - share) / (share - self._first))} left on this machine"


def listed(title: str, rows: Sequence[tuple[str, str, float | None]], kind: str = "m-ran") -> str:
    """Return the HTML of a list below the bar: names and values, with a bar for each share. "" if there are no rows."""
    return macros("running/templates/status.html").list(title, rows, kind)


def _share(progress: Progress) -> float | None:
    return min(1.0, progress.done / progress.total) if progress.total > 0 else None


def _card(note: str, how_far: str, share: float | None, below: str = "", address: str = "") -> str:
    return render(
        "running/templates/meter.html", note=note[:1].upper() + note[1:], how_far=how_far, share=share, below=below, address=address
    )
