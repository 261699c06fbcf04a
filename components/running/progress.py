"""Progress on the page: what is being done, how far it is, how long it still takes."""

import time
from collections.abc import Sequence

from analyzers.base import Progress
from components.text import numbers
from components.text.render import macros, render

_EVERY_SECONDS = 0.15
# Seconds before an estimate is shown: earlier ones are erratic.
_SETTLED_SECONDS = 1.0


class Meter:
    """Renders progress as HTML, at a rate that looks live and does not flood a slow connection."""

    def __init__(self, expected: str = "") -> None:
        """expected: how long the run will take, as a phrase, until it can be told from what is done."""
        self._expected = expected
        self._started = time.monotonic()
        self._unit = ""
        self._shown = 0.0
        self._counting, self._first = False, 0.0

    @staticmethod
    def waiting(address: str = "", expected: str = "") -> str:
        """The HTML until the first progress arrives, also while the job waits in the queue. address: of the page that asks for the same."""
        return _card("Starting", expected, None, address=address)

    @staticmethod
    def is_progress(html: str | None) -> bool:
        """Whether ``html`` shows progress rather than an outcome."""
        return "<progress" in (html or "")

    def show(self, progress: Progress) -> str:
        """The HTML for ``progress``; empty shortly after the last one."""
        now = time.monotonic()
        if progress.unit != self._unit:  # the phases of an analysis differ in speed: estimate each on its own
            self._unit, self._counting, self._shown = progress.unit, False, 0.0
        if not self._counting:  # what cannot be counted, such as loading, says nothing about the rest
            self._started, self._first = now, _share(progress) or 0.0
        self._counting = progress.total > 0
        if now - self._shown < _EVERY_SECONDS:
            return ""
        self._shown = now
        how_far = self._how_far(progress, now - self._started)
        return _card(progress.note or "Reading", how_far, _share(progress), self.found(progress))

    def found(self, progress: Progress) -> str:
        """Preliminary findings as HTML below the bar; none unless an analyzer's own meter has some."""
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
    """A list below the bar, as HTML: names and values, with a bar for each share. Empty if there are no rows."""
    return str(macros("running/templates/status.html").list(title, rows, kind))


def _share(progress: Progress) -> float | None:
    return min(1.0, progress.done / progress.total) if progress.total > 0 else None


def _card(note: str, how_far: str, share: float | None, below: str = "", address: str = "") -> str:
    return render(
        "running/templates/meter.html", note=note[:1].upper() + note[1:], how_far=how_far, share=share, below=below, address=address
    )
