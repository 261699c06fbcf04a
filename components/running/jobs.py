"""One analysis for a visitor: public checkpoints only, within the page's limits."""

import re
import time
from collections.abc import Generator
from typing import Any, NamedTuple

from analyzers import ANALYZERS, analyzer_of, limits
from analyzers.base import Progress, Report, Request, WeightsRequest
from analyzers.checkpoints import Access
from analyzers.errors import LimitExceeded, MantissaError
from components.running import model_jobs
from components.running.log import log_unexpected
from components.site import archive
from components.text import numbers

OUR_FAULT = "Something went wrong on our side, not because of what you typed. Try again, or try another model."
_DASHES = re.compile(r"(?<!\S)--(?=[a-z])")


class Kind(NamedTuple):
    """A kind of job. name: Gradio's concurrency id; limit: how many run at once."""

    name: str
    limit: int


READING = Kind("analysis", limits.JOBS)
MODELS = Kind("model", limits.MODEL_JOBS)


def kind_of(analyzer: str) -> Kind:
    """The kind of job of an analyzer."""
    return MODELS if ANALYZERS[analyzer].runs_model else READING


def job(request: Request, started: float | None = None, again: bool = False) -> Generator[Any, None, None]:
    """Analyze ``request`` with no token and no local files, within the page's limits: yields progress, then the report.

    A stored report is not computed again unless ``again``: it follows one item of progress in the unit `archive.STORED`, whose note says
    when it was made. A computed report is stored. The revisions of repositories are resolved once, before both.

    Closing it closes the analysis. Raises LimitExceeded for an exact run of more than ``WEB_EXACT_BYTES`` (all checkpoints together), for
    running a model for more than ``WEB_MODEL_WORK``, and after ``JOB_SECONDS`` since ``started`` (`time.monotonic`, default now), and
    whatever the analyzer raises.
    """
    started = time.monotonic() if started is None else started
    pinned = archive.resolve(request)
    if not again and (found := archive.find_pinned(pinned)) is not None:
        report, made = found
        yield Progress(done=1, total=1, unit=archive.STORED, note=made)
        yield report
        return
    work = _work(pinned.request)
    try:
        for item in work:
            if isinstance(item, Report):
                item = item.model_copy(update={"request": request})  # as asked for: the checkpoints of the report have the commits
                archive.keep(item)
            if isinstance(item, Progress) and time.monotonic() - started > limits.JOB_SECONDS:
                less = analyzer_of(request).component("form").COST.less
                raise LimitExceeded(
                    f"Stopped after {numbers.duration(limits.JOB_SECONDS)}, the limit for an analysis here "
                    f"(MANTISSA_JOB_SECONDS): use {less} or the command line."
                )
            yield item
    finally:
        if isinstance(work, Generator):
            work.close()


def _work(request: Request) -> Any:
    if not isinstance(request, WeightsRequest):
        return model_jobs.run(request)
    largest = limits.WEB_EXACT_BYTES if request.mode == "exact" else None
    return analyzer_of(request).load().analyze(request, access=Access(), largest=largest)


def sentence(error: Exception) -> str:
    """The sentence that a visitor reads about ``error``; an unexpected error is logged. Options of the command line lose their dashes."""
    if isinstance(error, MantissaError):
        return _DASHES.sub("", str(error))
    log_unexpected(error)
    return OUR_FAULT
