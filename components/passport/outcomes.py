"""What became of each of several models: a report or the sentence that says why there is none."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from analyzers.dtype_detection import DtypeReport


@dataclass(frozen=True, slots=True)
class Outcome:
    """One model of several, as asked for.

    report: without its tensor rows, so that many can be held for a visitor; None where it failed, and ``error`` says why.
    file: the whole report as JSON.
    """

    model: str
    report: DtypeReport | None = None
    error: str = ""
    file: Path | None = None

    def whole(self) -> DtypeReport:
        """The report with everything in it. Raises OSError when its file is no longer there."""
        if self.file is None:
            raise FileNotFoundError
        return DtypeReport.model_validate_json(self.file.read_text(encoding="utf-8"))


def kept(model: str, report: DtypeReport, file: Path) -> Outcome:
    """The outcome of a report, whose whole is written to ``file``. Raises OSError when the disk refuses."""
    file.write_text(report.model_dump_json(), encoding="utf-8")
    light = report.model_copy(update={"tensors": (), "buffers": ()})
    light.keep_full_rows(tuple)  # or the copy would hold what makes them
    return Outcome(model, light, file=file)


def reports_of(outcomes: Sequence[Outcome]) -> list[DtypeReport]:
    """The reports there are, in order."""
    return [outcome.report for outcome in outcomes if outcome.report is not None]
