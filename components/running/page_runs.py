"""The runs of a page: one analysis is started, followed, stopped, and its result shown."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import gradio as gr

from analyzers.base import Progress, Report, Request
from analyzers.errors import AccessDenied, HiddenRepository, MantissaError, TokenRefused
from analyzers.formatting import day
from components.forms.fields import Controls
from components.forms.form import Typed, smaller
from components.results.layout import Layout
from components.results.result_tabs import build_result
from components.results.share import Share
from components.running import duration_estimate
from components.running.jobs import job, sentence
from components.running.open_reports import OpenReport
from components.running.progress import Meter
from components.running.queue_limits import caller
from components.running.zero_gpu import GpuRefused
from components.server.log import log_unexpected
from components.site import addresses, stored_results
from components.site.identity import login_page
from components.site.stored_results import STORED
from components.text.render import macros

Updates = dict[Any, Any]
_PIECES = macros("running/templates/status.html")


class PageRuns:
    """The runs of one page: update ``status``, the result and ``controls``. Lays out the result.

    meter: shows the progress. request: makes the request of what is typed, or raises MantissaError with the sentence to show.

    The last item of a run shows the result and releases the controls in one update: a further update that leaves a plot or a table
    unchanged would be applied to its value by Gradio's page, and destroy it.
    """

    def __init__(
        self, controls: Controls, status: gr.HTML, layout: Layout[Any], meter: type[Meter], request: Callable[[Typed], Request]
    ) -> None:
        self.controls = controls
        self.meter = meter
        self.request = request
        self.status = status
        self.result = build_result(layout)

    def state(self) -> list[Any]:
        """Session state for `stopped`, as the inputs of an event."""
        return []

    def outputs(self) -> list[Any]:
        """Everything that a run may update."""
        return [*self.controls.components(), self.status, *self.result.components()]

    def shares(self) -> list[Share]:
        """The fields with links and embed codes."""
        return [self.result.share]

    def wire(self, halted: Any) -> None:
        """Further events of the page. halted: the event after Stop."""

    def begin(self) -> Updates:
        """Show the wait for the first progress only."""
        return {**self.cleared(Meter.waiting()), **self.controls.busy(True)}

    def refuse(self) -> Updates:
        """Say that the queue is full."""
        return {**self.cleared(failed_status("Too many analyses are waiting already; try again later.")), **self.controls.busy(False)}

    def cleared(self, said: str) -> Updates:
        """Updates that hide the result and show one status."""
        return {self.status: said, **self.result.hide()}

    def run(self, form: Typed, again: bool = False) -> Iterator[Updates]:
        """Run the request of ``form``. Never raises: an error is shown in place of the result.

        again: compute also where a result is stored.
        """
        try:
            yield from self.work(form, again)
        except Exception as error:
            yield {self.status: error_status(error, partial(self.request, form)), **self.result.hide(), **self.controls.busy(False)}

    def work(self, form: Typed, again: bool) -> Iterator[Updates]:
        """The progress and the result. Raises what the analysis raises."""
        made = ""
        request = self.request(form)
        expected = duration_estimate.expected_duration(request)
        meter = self.meter(expected)
        # who reloads the page in the middle of the run asks for the same
        yield {self.status: meter.waiting(addresses.as_requested(request), expected)}
        for item in job(request, again=again, rejoin=True):
            if not isinstance(item, Progress):
                yield self.show(item, made)
            elif item.unit == STORED:
                made = item.note
            elif said := meter.show(item):
                yield {self.status: said}

    def show(self, report: Any, made: str) -> Updates:
        """Updates that show ``report``. made: when it was stored, empty if it was computed now."""
        free = {**self.controls.busy(False), self.controls.again: gr.update(visible=bool(made))}
        return {self.status: finished_status(report, made), **self.result.show(report, OpenReport(report)), **free}

    def show_stored(self, form: Typed) -> Updates:
        """Updates that show the stored result of a request that names its commits, if there is one. Never waits, never raises."""
        try:
            found = stored_results.find(self.request(form), ask=False)
            return self.show(*found) if found is not None else {}
        except Exception as error:  # the run that follows reports it
            if not isinstance(error, MantissaError):
                log_unexpected(error)
            return {}

    def stopped(self) -> Updates:
        """The status after Stop."""
        return {self.status: status("Stopped. No results were saved."), **self.controls.busy(False)}


def status(message: str, address: str = "") -> str:
    """A status in place of the result, HTML. address: of the page that shows the same, if there is one."""
    return str(_PIECES.status(message, address))


def finished_status(report: Report, made: str) -> str:
    """The status next to a result, HTML. made: when it was stored, empty if it was computed now."""
    closed = [facts.ref for facts in stored_results.checkpoints(report) if not facts.public]
    return str(_PIECES.done(addresses.recompute(report), report.summary, day(made) if made else "", addresses.stored(report.id), closed))


def error_status(error: Exception, request: Callable[[], Request]) -> str:
    """An error of a run of ``request()``, HTML, with links to what can be done about it: the login, which returns here; a smaller run
    or, if there is none, the command.
    """
    steps: dict[str, str] = {}
    said = sentence(error)
    asks_to_log_in = isinstance(error, (AccessDenied, HiddenRepository)) and caller.get().access.token is None
    if asks_to_log_in or isinstance(error, TokenRefused):
        steps["Log in with Hugging Face"] = login_page(addresses.as_requested(request()))
    if isinstance(error, GpuRefused):
        if (less := smaller(request())) is not None:
            steps["Try a smaller run"] = addresses.as_requested(less)
        else:
            said = f"{said} The command: {addresses.command(request())}"
    return failed_status(said, steps)


def failed_status(message: str, steps: Mapping[str, str] = MappingProxyType({})) -> str:
    """An error in place of the result, HTML. steps: text and address of links to what can be done about it; without address left out."""
    return str(_PIECES.failed(message, steps))
