"""Gradient conflict of one model on one text."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from analyzers.gradient_conflict.request import ConflictRequest

if TYPE_CHECKING:
    from analyzers.checkpoints import Access


def analyze(request: ConflictRequest, access: "Access | None" = None, *, largest: int | None = None, lent: int = 0) -> Iterator[Any]:
    """Measure one model on one text, see `driver.run_model`. Yields progress in layers, and finally a `ConflictReport`."""
    # Imported on call, so that forms and endpoints can read the request without torch.
    from analyzers.gradient_conflict.job import ConflictJob
    from analyzers.gradient_conflict.report import ConflictReport
    from analyzers.language_models.driver import run_model

    yield from run_model(ConflictJob, ConflictReport, request, access, largest, lent)
