"""Runs of the passport page: one model, or several that are shown as they finish."""

import time
from collections.abc import Iterator
from typing import Any

import gradio as gr

from analyzers.base import Progress
from analyzers.dtype_detection import DtypeRequest
from components.forms.controls import Controls
from components.passport.form import Form, permalink_of_several
from components.passport.several import Batch, Several, opened
from components.running.jobs import job, sentence
from components.running.progress import Meter
from components.running.runs import Result, Runs, Updates, failed, status
from components.site.archive import STORED


class PassportRuns(Runs):
    """`Runs` that also update ``several`` and the session's ``batch``."""

    def __init__(self, controls: Controls, status: gr.HTML, result: Result, several: Several, batch: gr.State) -> None:
        super().__init__(controls, status, result)
        self._several = several
        self._batch = batch

    def state(self) -> list[Any]:
        """The batch."""
        return [self._batch]

    def outputs(self) -> list[Any]:
        """All components a run may update."""
        return [*super().outputs(), self._batch, *self._several.components()]

    def run(self, form: Form, again: bool = False) -> Iterator[Updates]:
        """Analyze the models named in ``form``. Never raises: errors are shown in place of the result."""
        yield from self.guarded(lambda: self._work(form.requests(), again))

    def _work(self, requests: list[DtypeRequest], again: bool) -> Iterator[Updates]:
        return self.one(requests[0], again) if len(requests) == 1 else self._several_models(Batch.of(requests))

    def cleared(self, said: str) -> Updates:
        """Updates that clear the page except for the message ``said``."""
        return {**super().cleared(said), self._batch: None, **self._several.hide()}

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
                    if item.unit == STORED:
                        continue
                    named = item.model_copy(update={"note": f"{number} of {len(batch.requests)}, {request.model}: {item.note}"})
                    if said := meter.show(named):
                        yield {self.status: said}
            except Exception as error:
                batch.fail(sentence(error))
            yield self._several.rows(batch)
        if any(outcome.report for outcome in batch.outcomes):
            done = status(batch.summary(), permalink_of_several(batch.outcomes, batch.requests[0]))
        else:
            done = failed(f"None of the {len(batch.requests)} models could be read; the table says why.")
        yield {self.status: done, **self._several.end(batch), **self.controls.busy(False)}

    def stopped(self, batch: Batch | None = None) -> Updates:
        """The page after Stop: of several models, the finished ones remain."""
        if batch is None or not batch.outcomes:
            return {**super().stopped(), **self._several.hide()}
        said = status(f"Stopped. {batch.summary()}")
        return {self.status: said, **self._several.rows(batch, "not read: stopped"), **self.controls.busy(False)}

    def files(self, batch: Batch | None) -> Updates:
        """After Stop: the figure and the downloads of the finished models."""
        try:
            return self._several.end(batch) if batch is not None and batch.outcomes else {self.status: gr.skip()}
        except Exception as error:
            return {self.status: failed(sentence(error))}

    def open(self, batch: Batch | None, event: gr.EventData) -> Updates:
        """Show the full result of the clicked table row below the table."""
        outcome = opened(batch, event)
        if outcome is None:
            return {self.status: gr.skip()}
        try:
            return self.result.show(outcome.whole())
        except FileNotFoundError:
            return {self.status: failed("This result is no longer kept here: open its link in a new tab to read the model again.")}
        except Exception as error:
            return {self.status: failed(sentence(error))}
