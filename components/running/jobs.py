"""Runs one analysis for a visitor within the page's limits, on public checkpoints and those that the visitor's own token can read."""

import re
import time
from collections.abc import Generator
from typing import Any

from analyzers import ANALYZERS, analyzer_of
from analyzers.checkpoints import Access
from analyzers.core import limits
from analyzers.core.errors import LimitExceeded, MantissaError
from analyzers.core.report import Report
from analyzers.core.request import Progress, Request
from components.running import analysis_process, rejoined_runs, zero_gpu
from components.running.queue_limits import LOOKUPS, MODELS, READING, SAMPLES, JobQueue, caller
from components.running.resource_exhaustion import EXHAUSTED, is_exhausted
from components.server.log import log_unexpected
from components.site import stored_results
from components.text import numbers

OUR_FAULT = "Something went wrong on our side, not because of what you typed. Try again, or try another model."
_DASHES = re.compile(r"(?<!\S)--(?=[a-z])")


def kind_of(analyzer: str) -> JobQueue:
    """Return the queue of an analyzer's jobs."""
    return MODELS if ANALYZERS[analyzer].runs_model else READING


def job(request: Request, started: float | None = None, again: bool = False, rejoin: bool = False) -> Generator[Any, None, None]:
    """Analyze ``request`` with the caller's token, if any, and no local files, within the page's limits: yields progress, then the report.

    A stored report is not computed again unless ``again``: it follows one item of progress in the unit `stored_results.STORED`, whose note
    says when it was made. A computed report is stored if everything it names is public. The job waits for a slot in the queue of its kind,
    unless its report is stored and can be stored without asking the Hub. Revisions of repositories are resolved once, before either.

    Closing the generator ends the analysis. With ``rejoin``, an analysis that was not stopped continues for a while, in which the same
    client may join it again (`rejoined_runs`).

    Raises LimitExceeded for an exact run of more than ``WEB_EXACT_BYTES`` (all checkpoints together), for more than ``WEB_MODEL_WORK`` of
    running a model, after ``JOB_SECONDS`` since ``started`` (`time.monotonic`, default: when it got its slot), and if nobody reads the
    results; and the analyzer's own errors.
    """
    who = caller.get()
    pinned = stored_results.resolve(request, ask=False)
    if not stored_results.names_commits(request):
        slot = yield from LOOKUPS.slot(who)
        try:
            pinned = stored_results.resolve(request)
        finally:
            slot.release()
    if not again and (stored := stored_results.find_pinned(pinned)) is not None:
        report, made = stored
        yield Progress(done=1, total=1, unit=stored_results.STORED, note=made)
        yield report
        return
    run = rejoined_runs.join(pinned.request, who) if rejoin else None
    if run is None:
        slot = yield from _queue(request).slot(who)
        run = rejoined_runs.Run(slot, _work(pinned.request, who.access), time.monotonic() if started is None else started)
    item: Any = None
    try:
        for item in run.work:
            if isinstance(item, Report):
                item = item.model_copy(update={"request": request})  # the request as typed: the report's checkpoints have the commits
                stored_results.store(item, who.access)
            else:
                run.slot.check()
            if isinstance(item, Progress) and time.monotonic() - run.started > limits.JOB_SECONDS:
                less = analyzer_of(request).component("form").COST.less
                raise LimitExceeded(
                    f"Stopped after {numbers.duration(limits.JOB_SECONDS)}, the limit for an analysis here "
                    f"(MANTISSA_JOB_SECONDS): use {less} or the command line."
                )
            yield item
    except GeneratorExit:
        if rejoin and isinstance(item, Progress):
            rejoined_runs.keep(pinned.request, run)
        else:
            run.close()
        raise
    except BaseException:
        run.close()
        raise
    run.close()


def _queue(request: Request) -> JobQueue:
    analyzer = analyzer_of(request)
    return SAMPLES if not analyzer.runs_model and stored_results.is_sample(request) else kind_of(analyzer.name)


def _work(request: Request, access: Access) -> Generator[Any, None, None]:
    """Analyze ``request`` after the analyzer's form has completed it."""
    analyzer = analyzer_of(request)
    if (complete := getattr(analyzer.component("form"), "complete", None)) is not None:
        request = yield from complete(request, access)
    if analyzer.runs_model:
        yield from zero_gpu.run(request, access)
    else:
        largest = None if getattr(request, "mode", "exact") == "quick" else limits.WEB_EXACT_BYTES
        yield from analysis_process.run(request, largest, access)


def sentence(error: Exception) -> str:
    """Return the sentence for visitors about ``error``, without the dashes of command-line options. Logs an unexpected error."""
    if isinstance(error, MantissaError):
        return _DASHES.sub("", str(error))
    if is_exhausted(error):
        return EXHAUSTED
    log_unexpected(error)
    return OUR_FAULT
