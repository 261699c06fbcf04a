"""What happens between the button and the result: one analysis is watched, stopped, and shown."""

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
    """What a finished analysis fills on a page."""

    def components(self) -> list[Any]:
        """All parts of it, as the outputs of an event."""

    def hide(self) -> Updates:
        """Updates that take it off the page."""

    def show(self, report: Any) -> Updates:
        """Updates that show ``report``. Raises OSError when its downloads cannot be written."""

    def summary(self, report: Any) -> str:
        """``report`` as one sentence of plain text, for a screen reader."""


class Form(Protocol):
    """The fields of a page, as typed."""

    def request(self) -> Request:
        """The validated request. Raises InvalidRequest."""


class Runs:
    """The runs of one page: fills ``status`` and ``result``, and sets ``controls``.

    The last item of a run brings the result and frees the controls at once: Gradio's page would apply another item that
    leaves a plot or a table as it is to the value it holds, and so destroy it. meter: shows the progress of a run.
    """

    def __init__(self, controls: Controls, status: gr.HTML, result: Result, meter: type[Meter] = Meter) -> None:
        self.controls = controls
        self.meter = meter
        self.status = status
        self.result = result

    def state(self) -> list[Any]:
        """What of the session `stopped` is told, as the inputs of an event."""
        return []

    def outputs(self) -> list[Any]:
        """Everything a run may fill."""
        return [*self.controls.components(), self.status, *self.result.components()]

    def begin(self) -> Updates:
        """Nothing but the wait for the first progress."""
        return {**self.cleared(Meter.waiting()), **self.controls.busy(True)}

    def refuse(self) -> Updates:
        """The queue is full."""
        return {**self.cleared(failed("Too many analyses are waiting already; try again in a minute.")), **self.controls.busy(False)}

    def run(self, form: Any, again: bool = False) -> Iterator[Updates]:
        """Do what ``form`` asks for. Never raises: what goes wrong is said where the result would stand.

        again: also where its result is stored.
        """
        yield from self.guarded(lambda: self.one(form.request(), again))

    def stopped(self) -> Updates:
        """What stands there after Stop."""
        return {self.status: status("Stopped. Nothing of it was kept."), **self.controls.busy(False)}

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
        """Updates that show the result of a request that names its commits, if it is stored: without a wait. Never raises."""
        try:
            found = archive.find(asked(), ask=False)
            return self._shown(*found) if found is not None else {}
        except Exception as error:  # the run that follows says what is wrong
            if not isinstance(error, MantissaError):
                log_unexpected(error)
            return {}

    def _shown(self, report: Any, made: str) -> Updates:
        """Updates that show ``report``. made: when it was stored, empty where it was computed now. Raises OSError."""
        address = escape(addresses.again(report))
        done = f'<p class="m-hidden" role="status" data-address="{address}">Done. {html(self.result.summary(report), 1_000)}</p>'
        free = {**self.controls.busy(False), self.controls.again: gr.update(visible=bool(made))}
        return {self.status: done + stored(report.id, made), **self.result.show(report), **free}

    def guarded(self, work: Callable[[], Iterator[Updates]]) -> Iterator[Updates]:
        """The updates of ``work``; an error becomes the last of them."""
        try:
            yield from work()
        except Exception as error:
            yield {self.status: failed(sentence(error)), **self.result.hide(), **self.controls.busy(False)}

    def cleared(self, said: str) -> Updates:
        """Updates that leave nothing on the page but what is said."""
        return {self.status: said, **self.result.hide()}


def stored(identifier: str, made: str) -> str:
    """That a result was not computed but was there, in HTML; nothing where it was computed. made: when, UTC."""
    if not made:
        return ""
    page = f'<a href="{addresses.stored(identifier)}">its own page</a>'
    return f'<p class="m-stored">Stored result of {html(day(made))}, not computed again. It has {page}.</p>'


def status(message: str, address: str = "") -> str:
    """A sentence of ours, in HTML, where the result would stand. address: of the page with what is shown, if it has one."""
    shown = f' data-address="{escape(address)}"' if address else ""
    return f'<div class="m-status" role="status"{shown}>{html(message, 1_000)}</div>'


def failed(message: str) -> str:
    """An error, in HTML, where the result would stand."""
    return f'<div class="m-status m-error" role="alert"><b>That did not work.</b> {html(message, 1_000)}</div>'
