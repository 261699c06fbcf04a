"""Progress of gradient conflict: the layers measured so far, and their rates."""

from analyzers.base import Progress
from components.running.progress import Meter
from components.text import numbers

_MOST = 48


class LayerMeter(Meter):
    """Shows a bar for each of the layers measured so far, the last layer of the model first; at most the latest 48."""

    def found(self, progress: Progress) -> str:
        """The bars, in HTML."""
        from analyzers.gradient_conflict.report import MeasuredProgress

        if not isinstance(progress, MeasuredProgress) or not progress.rates:
            return ""
        rows = "".join(
            f'<li>{each.layer}<meter value="{each.conflict_rate or 0:.4f}" aria-hidden="true"></meter>'
            f"<span>{numbers.share(each.conflict_rate)}</span></li>"
            for each in progress.rates[-_MOST:]
        )
        return f'<small>In conflict, by layer</small><ul class="m-bars m-measured">{rows}</ul>'
