"""What happens between Inspect and the result: one model or several are read, watched, stopped, and shown as they come."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import Any

import gradio as gr

from analyzers.base import Progress
from components.jobs import job, sentence
from components.links import Form
from components.passport import summary
from components.plain_text import html
from components.progress import Meter
from components.result import Result
from components.several import Batch, Several, opened

Updates = dict[Any, Any]


@dataclass(frozen=True, slots=True)
class Controls:
    """What starts and stops a run."""

    inspect: gr.Button
    stop: gr.Button
    chips: list[gr.Button]

    def components(self) -> list[Any]:
        """All of them, as the outputs of an event."""
        return [self.inspect, self.stop, *self.chips]

    def busy(self, running: bool) -> Updates:
        """Updates for while an analysis runs, and for when none does."""
        return {
            self.inspect: gr.update(visible=not running),
            self.stop: gr.update(visible=running),
            **{chip: gr.update(interactive=not running) for chip in self.chips},
        }


class Runs:
    """The runs of one page: fills ``status``, ``result``, ``several`` and the session's ``batch``, and sets ``controls``.

    The last item of a run brings the result and frees the controls at once: Gradio's page would apply another item that
    leaves a plot or a table as it is to the value it holds, and so destroy it.
    """

    def __init__(self, controls: Controls, status: gr.HTML, result: Result, several: Several, batch: gr.State) -> None:
        self._controls = controls
        self._status = status
        self._result = result
        self._several = several
        self._batch = batch

    def outputs(self) -> list[Any]:
        """Everything a run may fill."""
        parts = [self._status, self._batch, *self._result.components(), *self._several.components()]
        return self._controls.components() + parts

    def begin(self) -> Updates:
        """Nothing but the wait for the first progress."""
        return {**self._cleared(Meter.waiting()), **self._controls.busy(True)}

    def refuse(self) -> Updates:
        """The queue is full."""
        return {**self._cleared(failed("Too many analyses are waiting already; try again in a minute.")), **self._controls.busy(False)}

    def run(self, form: Form) -> Iterator[Updates]:
        """Read what ``form`` names. Never raises: what goes wrong is said where the result would stand."""
        try:
            requests = form.requests()
            if len(requests) > 1:
                yield from self._several_models(Batch.of(requests))
                return
            meter = Meter()
            for item in job(requests[0]):
                if not isinstance(item, Progress):
                    done = f'<p class="m-hidden" role="status">Done. {html(summary(item), 1_000)}</p>'
                    yield {self._status: done, **self._result.show(item), **self._controls.busy(False)}
                elif said := meter.show(item):
                    yield {self._status: said}
        except Exception as error:
            yield {self._status: failed(sentence(error)), **self._result.hide(), **self._controls.busy(False)}

    def _cleared(self, status: str) -> Updates:
        return {self._status: status, self._batch: None, **self._result.hide(), **self._several.hide()}

    def _several_models(self, batch: Batch) -> Iterator[Updates]:
        started = time.monotonic()
        yield {self._batch: batch, **self._several.begin(batch)}
        for number, request in enumerate(batch.requests, 1):
            meter = Meter()
            try:
                for item in job(request, started):
                    if not isinstance(item, Progress):
                        batch.add(item)
                        continue
                    named = item.model_copy(update={"note": f"{number} of {len(batch.requests)}, {request.model}: {item.note}"})
                    if said := meter.show(named):
                        yield {self._status: said}
            except Exception as error:
                batch.fail(sentence(error))
            yield self._several.rows(batch)
        if any(outcome.report for outcome in batch.outcomes):
            said = f'<div class="m-status" role="status">{escape(batch.summary())}</div>'
        else:
            said = failed(f"None of the {len(batch.requests)} models could be read; the table says why.")
        yield {self._status: said, **self._several.end(batch), **self._controls.busy(False)}

    def stopped(self, batch: Batch | None) -> Updates:
        """What stands there after Stop: of several models those that were finished stay."""
        if batch is None or not batch.outcomes:
            said = '<div class="m-status" role="status">Stopped. Nothing of it was kept.</div>'
            return {self._status: said, **self._several.hide(), **self._controls.busy(False)}
        said = f'<div class="m-status" role="status">Stopped. {escape(batch.summary())}</div>'
        return {self._status: said, **self._several.rows(batch, "not read: stopped"), **self._controls.busy(False)}

    def files(self, batch: Batch | None) -> Updates:
        """After Stop: the figure and the downloads of the models that were finished."""
        try:
            return self._several.end(batch) if batch is not None and batch.outcomes else {self._status: gr.skip()}
        except Exception as error:
            return {self._status: failed(sentence(error))}

    def open(self, batch: Batch | None, event: gr.EventData) -> Updates:
        """A row of the table was clicked: its whole result, below the table."""
        outcome = opened(batch, event)
        if outcome is None:
            return {self._status: gr.skip()}
        try:
            return self._result.show(outcome.whole())
        except FileNotFoundError:
            return {self._status: failed("This result is no longer kept here: open its link in a new tab to read the model again.")}
        except Exception as error:
            return {self._status: failed(sentence(error))}


def failed(message: str) -> str:
    """An error, in HTML, where the result would stand."""
    return f'<div class="m-status m-error" role="alert"><b>That did not work.</b> {html(message, 1_000)}</div>'
