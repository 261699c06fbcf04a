"""Progress of exit feedback: the cosines measured so far, and the losses of the small transformer under each signal."""

from collections.abc import Mapping

from analyzers.base import Progress
from components.exit.names import cosine
from components.running.progress import Meter
from components.text.plain_text import html


class SignalMeter(Meter):
    """Lists below the bar the latest cosine and loss of each signal."""

    def found(self, progress: Progress) -> str:
        """The lists, in HTML."""
        from analyzers.exit_feedback import ExitProgress

        if not isinstance(progress, ExitProgress):
            return ""
        return _listed("Mean cosine with the exact gradient", progress.cosines) + _listed("Loss of the small transformer", progress.losses)


def _listed(title: str, found: Mapping[str, float | None]) -> str:
    rows = "".join(f"<li>{html(name)}<span>{cosine(value)}</span></li>" for name, value in found.items())
    return f'<small>{title}</small><ul class="m-ran">{rows}</ul>' if rows else ""
