"""Opens the pull requests that results offer, each as a job of the visitor's own: with their login only, bounded, and ended by Stop."""

import time
from collections.abc import Generator, Mapping
from contextlib import closing
from typing import Any

import gradio as gr

from analyzers.core import limits
from analyzers.core.errors import AccessDenied, LimitExceeded
from analyzers.core.formatting import size
from analyzers.core.request import Progress
from components.forms.fields import QUIET
from components.library.pull_request import Opened, shrink_and_open
from components.results.copy_box import why_not
from components.results.copy_offer import CopyOffer
from components.results.downloads import GONE
from components.running import analysis_process
from components.running.async_steps import in_background
from components.running.jobs import sentence
from components.running.page_runs import PageRuns, failed_status
from components.running.progress import Meter
from components.running.queue_limits import COPIES, caller
from components.site import addresses
from components.site.identity import client_of, login_page
from components.text import macros, numbers

_PIECES = macros("results/templates/copy.html")
_LOG_IN = "Log in with Hugging Face first, and allow this app to open pull requests: it opens this one in your name."
_UNKNOWN = "This ended before an answer came. If the Hub had opened the pull request by then, it is listed on the model's page there."


def open_copy(offer: CopyOffer) -> Generator[Any, None, None]:
    """Open the pull request of ``offer`` with the caller's token: yields progress, then the outcome. Closing it ends the work.

    Raises AccessDenied without a token, LimitExceeded after JOB_SECONDS, and the errors of `shrink_and_open`.
    """
    who = caller.get()
    if not isinstance(who.access.token, str):
        raise AccessDenied(_LOG_IN)
    if why_not(offer):
        raise LimitExceeded(f"{why_not(offer)} {offer.command}")
    slot = yield from COPIES.slot(who)
    started = time.monotonic()
    model = offer.checkpoint
    arguments = (model.ref, model.commit, offer.after, limits.PULL_REQUEST_BYTES, who.access.token)
    try:
        with closing(analysis_process.run_work(shrink_and_open, arguments)) as items:
            for item in items:
                if isinstance(item, Progress):
                    slot.check()
                    if time.monotonic() - started > limits.JOB_SECONDS:
                        most = numbers.duration(limits.JOB_SECONDS)
                        raise LimitExceeded(f"Stopped after {most}, the limit here (MANTISSA_JOB_SECONDS). The command: {offer.command}")
                yield item
    finally:
        slot.release()


def wire_copy(runs: PageRuns) -> None:
    """Let the button of the offer open the pull request, and Stop, or the next run of the page, end that."""
    result = runs.result
    assert result.copy is not None and result.layout.copy is not None
    box, offered = result.copy, result.layout.copy

    @in_background
    def work(request: gr.Request, login: gr.OAuthToken | None, source: Any) -> Generator[Mapping[Any, Any], None, None]:
        meter, address = Meter(), ""
        try:
            if source is None:
                raise LimitExceeded(GONE)
            report = source.report(client_of(request))
            address = addresses.recompute(report)
            if (offer := offered(report)) is None:
                raise LimitExceeded(GONE)
            for item in open_copy(offer):
                if isinstance(item, Opened):
                    yield {box.status: _opened(item), **box.busy(False)}
                elif said := meter.show(item):
                    yield {box.status: said}
        except Exception as error:
            steps = {"Log in with Hugging Face": login_page(address)} if isinstance(error, AccessDenied) else {}
            yield {box.status: failed_status(sentence(error), steps), **box.busy(False)}

    def ended(shown: str | None) -> dict[Any, Any]:
        """Show that it ended early, after Stop or where the queue is full."""
        return {box.status: failed_status(_UNKNOWN) if Meter.is_progress(shown) else gr.skip(), **box.busy(False)}

    outputs = [box.status, box.go, box.stop]
    begun = box.go.click(lambda: {box.status: Meter.waiting(), **box.busy(True)}, outputs=outputs, queue=False, **QUIET)
    done = begun.then(work, result.share.source, outputs, concurrency_limit=None, concurrency_id=COPIES.name, **QUIET)
    done.failure(ended, box.status, outputs, queue=False, **QUIET)
    halted = box.stop.click(lambda: box.busy(False), outputs=outputs[1:], cancels=done, queue=False, **QUIET)
    halted.then(ended, box.status, outputs, queue=False, **QUIET)
    starts = [button.click for button in (runs.fields.go, runs.again, *runs.fields.chips)]
    gr.on(starts, None, cancels=done, queue=False, **QUIET)


def _opened(outcome: Opened) -> str:
    narrowed = f"{outcome.narrowed:,} of {numbers.plural(outcome.tensors, 'tensor')} in a narrower format"
    return _PIECES.opened(outcome, size(outcome.bytes_before), size(outcome.bytes_after), narrowed)
