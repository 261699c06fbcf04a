"""Precision variants of one model on one text."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from analyzers.precision_variants.request import PrecisionRequest

if TYPE_CHECKING:
    from analyzers.checkpoints import Access


def analyze(request: PrecisionRequest, access: "Access | None" = None, *, largest: int | None = None, lent: int = 0) -> Iterator[Any]:
    """Run one model in fp32 and in every variant, see `driver.run_model`. Yields progress in layers, and last a `PrecisionReport`."""
    # Imported on call, so that forms can read presets without torch.
    from analyzers.language_models.driver import run_model
    from analyzers.precision_variants.job import PrecisionJob
    from analyzers.precision_variants.report import PrecisionReport

    yield from run_model(PrecisionJob, PrecisionReport, request, access, largest, lent)
