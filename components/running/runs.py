"""The runs of a page: one analysis is started, followed, stopped, and its result shown."""

from collections.abc import Callable, Iterator
from html import escape
from typing import Any, Protocol

import gradio as gr

from analyzers.base import Progress, Request
from analyzers.errors import MantissaError
from analyzers.formatting import day
from components.forms.controls import Controls
from components.running.jobs import job, sentence
from components.running.log import log_unexpected
from components.running.progress import Meter
from components.site import addresses, archive
from components.site.archive import STORED
from components.text.plain_text import html

Updates = dict[Any, Any]


class Result(Protocol):
    """The part of a page that shows a finished analysis."""

    def components(self) -> list[Any]:
        """All its components, as the outputs of an event."""

    def hide(self) -> Updates:
        """Updates that hide it."""

    def show(self, report: Any) -> Updates:
        """Updates that show ``report``. Raises OSError if its downloads cannot be written."""

    def summary(self, report: Any) -> str:
        """``report`` as one sentence of plain text, for a screen reader."""


class Form(Protocol):
    """The fields of a page, as typed."""

    def request(self) -> Request:
        """The validated request. Raises InvalidRequest."""


class Runs:
    """The runs of one page: update ``status``, ``result`` and ``controls``. meter: shows the progress.

    The last item of a run shows the result and releases the controls in one update: a further update that leaves a plot or a table
    unchanged would be applied to its value by Gradio's page, and destroy it.
    """

    def __init__(self, controls: Controls, status: gr.HTML, result: Result, meter: type[Meter] = Meter) -> None:
        self.controls = controls
        self.meter = meter
        self.status = status
        self.result = result

    def state(self) -> list[Any]:
        """Session state for `stopped`, as the inputs of an event."""
        return []

    def outputs(self) -> list[Any]:
        """Everything that a run may update."""
        return [*self.controls.components(), self.status, *self.result.components()]

    def begin(self) -> Updates:
        """Show the wait for the first progress only."""
        return {**self.cleared(Meter.waiting()), **self.controls.busy(True)}

    def refuse(self) -> Updates:
        """Say that the queue is full."""
        return {**self.cleared(failed("Too many analyses are waiting already; try again in a minute.")), **self.controls.busy(False)}

    def run(self, form: Any, again: bool = False) -> Iterator[Updates]:
        """Run the request of ``form``. Never raises: an error is shown in place of the result.

        again: compute also where a result is stored.
        """
        yield from self.guarded(lambda: self.one(form.request(), again))

    def stopped(self) -> Updates:
        """The status after Stop."""
        return {self.status: status("Stopped. No results were saved."), **self.controls.busy(False)}

    def one(self, request: Request, again: bool = False) -> Iterator[Updates]:
        """The progress and the result of one request. Raises what the analysis raises."""
        meter = self.meter()
        made = ""
        for item in job(request, again=again):
            if not isinstance(item, Progress):
                yield self._shown(item, made)
            elif item.unit == STORED:
                made = item.note
            elif said := meter.show(item):
                yield {self.status: said}

    def there(self, asked: Callable[[], Request]) -> Updates:
        """Updates that show the stored result of a request that names its commits, if there is one. Never waits, never raises."""
        try:
            found = archive.find(asked(), ask=False)
            return self._shown(*found) if found is not None else {}
        except Exception as error:  # the run that follows reports it
            if not isinstance(error, MantissaError):
                log_unexpected(error)
            return {}

    def _shown(self, report: Any, made: str) -> Updates:
        """Updates that show ``report``. made: when it was stored, empty if it was computed now. Raises OSError."""
        address = escape(addresses.again(report))
        done = f'<p class="m-hidden" role="status" data-address="{address}">Done. {html(self.result.summary(report), 1_000)}</p>'
        free = {**self.controls.busy(False), self.controls.again: gr.update(visible=bool(made))}
        return {self.status: done + stored(report.id, made), **self.result.show(report), **free}

    def guarded(self, work: Callable[[], Iterator[Updates]]) -> Iterator[Updates]:
        """The updates of ``work``; an error becomes the last one."""
        try:
            yield from work()
        except Exception as error:
            yield {self.status: failed(sentence(error)), **self.result.hide(), **self.controls.busy(False)}

    def cleared(self, said: str) -> Updates:
        """Updates that hide the result and show one status."""
        return {self.status: said, **self.result.hide()}


def stored(identifier: str, made: str) -> str:
    """HTML that says that a result was stored, and since when (made, UTC); empty if it was computed now."""
    if not made:
        return ""
    page = f'<a href="{addresses.stored(identifier)}">its own page</a>'
    return f'<p class="m-stored">Stored result of {html(day(made))}, not computed again. It has {page}.</p>'


def status(message: str, address: str = "") -> str:
    """A status in place of the result, HTML. address: of the page that shows the same, if there is one."""
    shown = f' data-address="{escape(address)}"' if address else ""
    return f'<div class="m-status" role="status"{shown}>{html(message, 1_000)}</div>'


def failed(message: str) -> str:
    """An error in place of the result, HTML."""
    return f'<div class="m-status m-error" role="alert"><b>That did not work.</b> {html(message, 1_000)}</div>'
