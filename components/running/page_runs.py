"""Runs one analysis on a page at a time: starts it, shows its progress and its result, stops it."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import gradio as gr

from analyzers.core.errors import AccessDenied, HiddenRepository, MantissaError, TokenRefused
from analyzers.core.formatting import day
from analyzers.core.report import Report
from analyzers.core.request import Progress, Request
from components.forms.fields import Fields, build_status
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
from components.text import macros

Updates = dict[Any, Any]
_PIECES = macros("running/templates/status.html")


class PageRuns:
    """The runs of one page. Lays out ``status``, the button ``again``, which computes a stored result, and the result.

    meter: shows the progress. request: makes the request from what is typed, or raises MantissaError with the sentence to show.

    The last item of a run shows the result and releases the buttons in one update: a further update that leaves a plot or a table
    unchanged would be applied to its value by Gradio's page, and destroy it.
    """

    def __init__(self, fields: Fields, layout: Layout[Any], meter: type[Meter], request: Callable[[Typed], Request]) -> None:
        self.fields, self.meter, self.request = fields, meter, request
        self.status, self.again = build_status()
        self.build_above()
        self.result = build_result(layout)

    def build_above(self) -> None:
        """Lay out what a page has between the status and the result."""

    def state(self) -> list[Any]:
        """List the session state that `stopped` needs, as the inputs of an event."""
        return []

    def outputs(self) -> list[Any]:
        """List all components that a run may update."""
        return [*self.buttons(), self.status, *self.result.components()]

    def buttons(self) -> list[Any]:
        """List the buttons, as the outputs of an event."""
        return [self.fields.go, self.fields.stop, self.again, *self.fields.chips]

    def busy(self, running: bool) -> Updates:
        """Return updates of the buttons for when a run starts (``running``) or ends."""
        return {**self.fields.busy(running), self.again: gr.update(visible=False)}

    def shares(self) -> list[Share]:
        """List the fields with links and embed codes."""
        return [self.result.share]

    def wire(self, halted: Any) -> None:
        """Wire further events of the page. halted: the event after Stop."""

    def begin(self) -> Updates:
        """Show the wait for the first progress only."""
        return {**self.cleared(Meter.waiting()), **self.busy(True)}

    def refuse(self) -> Updates:
        """Say that the queue is full."""
        return {**self.cleared(failed_status("Too many analyses are waiting already; try again later.")), **self.busy(False)}

    def cleared(self, said: str) -> Updates:
        """Return updates that hide the result and show one status."""
        return {self.status: said, **self.result.hide()}

    def run(self, form: Typed, again: bool = False) -> Iterator[Updates]:
        """Run the request of ``form``. Never raises: an error is shown in place of the result.

        again: compute even if a result is stored.
        """
        try:
            yield from self.work(form, again)
        except Exception as error:
            yield {self.status: error_status(error, partial(self.request, form)), **self.result.hide(), **self.busy(False)}

    def work(self, form: Typed, again: bool) -> Iterator[Updates]:
        """Yield updates for the progress and the result. Raises the errors of the analysis."""
        made = ""
        request = self.request(form)
        expected = duration_estimate.expected_duration(request)
        meter = self.meter(expected)
        # so that reloading the page during the run makes the same request
        yield {self.status: meter.waiting(addresses.as_requested(request), expected)}
        for item in job(request, again=again, rejoin=True):
            if not isinstance(item, Progress):
                yield self.show(item, made)
            elif item.unit == STORED:
                made = item.note
            elif said := meter.show(item):
                yield {self.status: said}

    def show(self, report: Any, made: str) -> Updates:
        """Return updates that show ``report``. made: when it was stored, "" if it was computed now."""
        free = {**self.busy(False), self.again: gr.update(visible=bool(made))}
        return {self.status: finished_status(report, made), **self.result.show(report, OpenReport(report)), **free}

    def show_stored(self, form: Typed) -> Updates:
        """Return updates that show the stored result of a request that names its commits, if there is one. Never waits or raises."""
        try:
            stored = stored_results.find(self.request(form), ask=False)
            return self.show(*stored) if stored is not None else {}
        except Exception as error:  # the run that follows reports the error
            if not isinstance(error, MantissaError):
                log_unexpected(error)
            return {}

    def stopped(self) -> Updates:
        """Return updates that show the status after Stop."""
        return {self.status: status("Stopped. No results were saved."), **self.busy(False)}


def status(message: str, address: str = "") -> str:
    """Return the HTML of a status that replaces the result. address: the page with the same result, if there is one."""
    return _PIECES.status(message, address)


def finished_status(report: Report, made: str) -> str:
    """Return the HTML of the status next to a result. made: when it was stored, "" if it was computed now."""
    closed = [facts.ref for facts in stored_results.checkpoints(report) if not facts.public]
    return _PIECES.done(addresses.recompute(report), report.summary, day(made) if made else "", addresses.stored(report.id), closed)


def error_status(error: Exception, request: Callable[[], Request]) -> str:
    """Return the HTML of an error of a run of ``request()``, with a link to what helps: the login, which returns to this page, or a smaller
    run. Without a smaller run it names the command.
    """
    steps: dict[str, str] = {}
    message = sentence(error)
    asks_to_log_in = isinstance(error, (AccessDenied, HiddenRepository)) and caller.get().access.token is None
    if asks_to_log_in or isinstance(error, TokenRefused):
        steps["Log in with Hugging Face"] = login_page(addresses.as_requested(request()))
    if isinstance(error, GpuRefused):
        if (less := smaller(request())) is not None:
            steps["Try a smaller run"] = addresses.as_requested(less)
        else:
            message = f"{message} The command: {addresses.command(request())}"
    return failed_status(message, steps)


def failed_status(message: str, steps: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the HTML of an error that replaces the result. steps: text -> address of links to what helps; without address, omitted."""
    return _PIECES.failed(message, steps)
