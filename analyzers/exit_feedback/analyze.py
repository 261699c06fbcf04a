"""Exit feedback of one model on one text."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from analyzers.exit_feedback.request import ExitRequest

if TYPE_CHECKING:
    from analyzers.checkpoints import Access


def analyze(request: ExitRequest, access: "Access | None" = None, *, largest: int | None = None, lent: int = 0) -> Iterator[Any]:
    """Measure one model on one text, see `driver.run_model`. Yields progress in steps, and finally an `ExitReport`.

    Products with the head count as work as if they were the model's.
    """
    # Imported on call, so that forms can read the names of signals, and other programs use the heads, without loading everything.
    from analyzers.exit_feedback.job import ExitJob
    from analyzers.exit_feedback.report import ExitReport
    from analyzers.language_models.driver import run_model

    yield from run_model(ExitJob, ExitReport, request, access, largest, lent)
