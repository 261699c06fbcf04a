"""The outcome of each of several models: a report or an error message."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from analyzers.dtype_detection import DtypeReport


@dataclass(frozen=True, slots=True)
class Outcome:
    """One of several requested models.

    report: without tensor rows, to limit memory per visitor; None if the model failed, in which case ``error`` is set. file: the full
    report as JSON.
    """

    model: str
    report: DtypeReport | None = None
    error: str = ""
    file: Path | None = None

    def whole(self) -> DtypeReport:
        """The full report. Raises OSError if its file no longer exists."""
        if self.file is None:
            raise FileNotFoundError
        return DtypeReport.model_validate_json(self.file.read_text(encoding="utf-8"))


def kept(model: str, report: DtypeReport, file: Path) -> Outcome:
    """The outcome for a report; the full report is written to ``file``. Raises OSError if writing fails."""
    file.write_text(report.model_dump_json(), encoding="utf-8")
    light = report.model_copy(update={"tensors": (), "buffers": ()})
    light.keep_full_rows(tuple)  # else the copy would keep the closure that produces the full rows alive
    return Outcome(model, light, file=file)


def reports_of(outcomes: Sequence[Outcome]) -> list[DtypeReport]:
    """The available reports, in order."""
    return [outcome.report for outcome in outcomes if outcome.report is not None]
