"""One analysis on behalf of a visitor: what a stranger may read, within the page's limits."""

import logging
import time
import traceback
from collections.abc import Generator

from analyzers import limits
from analyzers.base import Progress
from analyzers.checkpoints import Access
from analyzers.dtype_detection import DtypeReport, DtypeRequest, analyze
from analyzers.errors import LimitExceeded, MantissaError
from components import numbers

OUR_FAULT = "Something went wrong on our side; nothing you typed caused it. Try again, or try another model."
_log = logging.getLogger("mantissa")


def job(request: DtypeRequest, started: float | None = None) -> Generator[Progress | DtypeReport, None, None]:
    """`analyze` with no token and no local files, stopped at the page's limits.

    Closing it closes the analysis. Raises LimitExceeded for an exact run of more than ``WEB_EXACT_BYTES`` and after
    ``JOB_SECONDS``, counted from ``started`` (`time.monotonic`; by default from now), and whatever `analyze` raises.
    """
    started = time.monotonic() if started is None else started
    largest = limits.WEB_EXACT_BYTES if request.mode == "exact" else None
    work = analyze(request, access=Access(), largest=largest)
    try:
        for item in work:
            if isinstance(item, Progress) and time.monotonic() - started > limits.JOB_SECONDS:
                raise LimitExceeded(
                    f"Stopped after {numbers.duration(limits.JOB_SECONDS)}, the longest an analysis may run here "
                    "(MANTISSA_JOB_SECONDS): use quick mode, a smaller budget, fewer models or the command line."
                )
            yield item
    finally:
        if isinstance(work, Generator):
            work.close()


def sentence(error: Exception) -> str:
    """What a visitor is told about ``error``; one that nobody expected is logged."""
    if isinstance(error, MantissaError):
        return str(error)
    log_unexpected(error)
    return OUR_FAULT


def log_unexpected(error: BaseException) -> None:
    """Write where an unexpected error came from to the log; its message stays out, for it may quote what was read."""
    frames = traceback.extract_tb(error.__traceback__)
    where = "\n".join(f"  {frame.filename}:{frame.lineno} in {frame.name}" for frame in frames)
    _log.error("unexpected %s\n%s", type(error).__name__, where)
