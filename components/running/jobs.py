"""One analysis on behalf of a visitor: what a stranger may read, within the page's limits."""

import re
import time
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from analyzers import dtype_detection, limits, update_sparsity
from analyzers.base import Progress, Report, Request, WeightsRequest
from analyzers.checkpoints import Access
from analyzers.errors import LimitExceeded, MantissaError
from components.running import model_jobs
from components.running.log import log_unexpected
from components.site import archive
from components.text import numbers

OUR_FAULT = "Something went wrong on our side; nothing you typed caused it. Try again, or try another model."
# What answers each kind of request that reads weights; whatever runs a model is answered by `model_jobs`.
ANALYZE: dict[type[WeightsRequest], Callable[..., Any]] = {
    dtype_detection.DtypeRequest: dtype_detection.analyze,
    update_sparsity.SparsityRequest: update_sparsity.analyze,
}
_DASHES = re.compile(r"(?<!\S)--(?=[a-z])")


class Lane(NamedTuple):
    """Where analyses wait for each other: Gradio's concurrency id, and how many of it run at once."""

    name: str
    limit: int


READING = Lane("analysis", limits.JOBS)
MODELS = Lane("model", limits.MODEL_JOBS)


def job(request: Request, started: float | None = None, again: bool = False) -> Generator[Any, None, None]:
    """The analysis of ``request`` with no token and no local files, stopped at the page's limits: progress, then the report.

    A report that is stored is not computed (again: it is): it comes after one item of progress in the unit `archive.STORED`, whose note
    says when it was made. What was computed is stored.

    Closing it closes the analysis. Raises LimitExceeded for an exact run of more than ``WEB_EXACT_BYTES`` (all checkpoints together), for
    running a model for more than ``WEB_MODEL_WORK``, and after ``JOB_SECONDS``, counted from ``started`` (`time.monotonic`; by default
    from now), and whatever the analyzer raises.
    """
    started = time.monotonic() if started is None else started
    if not again and (found := archive.find(request)) is not None:
        report, made = found
        yield Progress(done=1, total=1, unit=archive.STORED, note=made)
        yield report
        return
    work = _work(request)
    try:
        for item in work:
            if isinstance(item, Report):
                archive.keep(item)
            if isinstance(item, Progress) and time.monotonic() - started > limits.JOB_SECONDS:
                raise LimitExceeded(
                    f"Stopped after {numbers.duration(limits.JOB_SECONDS)}, the longest an analysis may run here "
                    f"(MANTISSA_JOB_SECONDS): use {_less(request)} or the command line."
                )
            yield item
    finally:
        if isinstance(work, Generator):
            work.close()


def _work(request: Request) -> Any:
    if not isinstance(request, WeightsRequest):
        return model_jobs.run(request)
    largest = limits.WEB_EXACT_BYTES if request.mode == "exact" else None
    return ANALYZE[type(request)](request, access=Access(), largest=largest)


def _less(request: Request) -> str:
    if isinstance(request, WeightsRequest):
        return "quick mode, a smaller budget, fewer models"
    return model_jobs.less(request)


def sentence(error: Exception) -> str:
    """What a visitor is told about ``error``; one that nobody expected is logged. Options have no dashes here, as they have in a shell."""
    if isinstance(error, MantissaError):
        return _DASHES.sub("", str(error))
    log_unexpected(error)
    return OUR_FAULT
