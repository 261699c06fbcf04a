"""The words of every analyzer, for reading: one snapshot of headline, tiles, advice, notes and terminal text for a few reports.

``python -m tests.words`` writes the snapshots again, all or those named; read the difference as prose before committing it. The reports of
an analyzer are made in ``tests/words/NAME.py``: ``reports()`` returns them by title, in which an error stands for itself.
"""

from functools import cache
from importlib import import_module
from pathlib import Path

from analyzers import ANALYZERS
from analyzers.core.errors import MantissaError
from analyzers.core.report import Report

SNAPSHOTS = Path(__file__).parent / "snapshots"


def converted() -> list[str]:
    """Return the analyzers that have reports here."""
    return sorted({path.stem for path in Path(__file__).parent.glob("*.py")} & ANALYZERS.keys())


@cache
def reports(name: str) -> dict[str, Report | MantissaError]:
    """Make the reports of an analyzer, once."""
    made: dict[str, Report | MantissaError] = import_module(f"tests.words.{name}").reports()
    return made


def snapshot(name: str) -> str:
    """Write what the reports of an analyzer say."""
    parts = []
    for title, report in reports(name).items():
        lines = [f"=== {title}", ""]
        if isinstance(report, MantissaError):
            lines.append(f"error: {report}")
        else:
            lines += [f"answer: {report.answer.code}, advice: {report.advice.code}", ""]
            lines += [f"[{report.tag(tile)}] {tile.label}: {tile.value}. {tile.detail}".rstrip() for tile in report.tiles()]
            lines += [f"finding {each.code}: {each.title}. {each.detail}" for each in vars(report).get("findings", ())]
            lines += ["", *(f"note {note.code}: {note.text}" for note in report.notes), "", *report.lines()]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"
