"""Defines the passport page, which shows the precision passport of one or several models."""

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import gradio as gr

from analyzers.core.request import Progress
from analyzers.dtype_detection import DtypeRequest
from components.dtype.comparison import Batch, Comparison, opened_report, permalink
from components.dtype.form import requests
from components.dtype.result import RESULT
from components.dtype.several_models import Outcome
from components.forms.fields import QUIET, READING, build_model_fields, build_rows
from components.forms.form import Typed
from components.library_page.gallery import gallery
from components.results.share import Share
from components.running.analysis_page import AnalysisPage
from components.running.jobs import job, sentence
from components.running.page_runs import PageRuns, Updates, failed_status, status
from components.running.progress import Meter
from components.site.identity import client_of
from components.site.stored_results import STORED

_LABEL = "Model id (org/name) or sample:tiny-bf16; several separated by commas or spaces"
_THREE = "sample:tiny-fp32, sample:tiny-bf16-as-fp32, sample:tiny-overflow"
# Label of each example button -> the values that it fills in.
EXAMPLES = {
    name: {"model": name}
    for name in (
        "sample:tiny-bf16-as-fp32",
        "sample:tiny-overflow",
        "google-t5/t5-small",
        "EleutherAI/pythia-1b",
        "meta-llama/Llama-2-7b-hf",
    )
} | {"three samples": {"model": _THREE}}
# Scrolls to the result, and focuses it for visitors who opened it with the keyboard.
_SHOW_RESULT = (
    "() => setTimeout(() => { document.querySelector('#m-result')?.scrollIntoView({block: 'start'}); "
    "document.querySelector('#m-result [role=tab]')?.focus({preventScroll: true}) }, 100)"
)


class PassportRuns(PageRuns):
    """`PageRuns` that may analyze several models, and then update the comparison and the session's batch."""

    def build_above(self) -> None:
        """Lay out the comparison of several models."""
        self._batch = gr.State()
        self._several = Comparison()

    def state(self) -> list[Any]:
        """List the batch, the session state that `stopped` needs."""
        return [self._batch]

    def outputs(self) -> list[Any]:
        """List all components that a run may update."""
        return [*super().outputs(), self._batch, *self._several.components()]

    def shares(self) -> list[Share]:
        """List the fields with links, of one model and of several."""
        return [*super().shares(), self._several.share]

    def wire(self, halted: Any) -> None:
        """Wire the files of finished models after Stop, and the result of a clicked row."""
        halted.then(self.files, self._batch, self.outputs(), queue=False, **QUIET)
        # always_last: otherwise a row requested while another opens would be dropped
        row = self._several.table.click(self.open, self._batch, self.outputs(), trigger_mode="always_last", queue=False, **QUIET)
        row.success(None, js=_SHOW_RESULT, **QUIET)

    def work(self, form: Typed, again: bool) -> Iterator[Updates]:
        """Analyze the models named in ``form``. Raises the errors of the analysis if it is a single one."""
        asked = requests(form)
        if len(asked) > 1:
            return self._work_on_several(Batch(asked))
        return super().work({**form, "model": asked[0].model}, again)  # one model, possibly named more than once

    def cleared(self, said: str) -> Updates:
        """Return updates that clear the page except for the message ``said``."""
        return {**super().cleared(said), self._batch: None, **self._several.hide()}

    def _work_on_several(self, batch: Batch) -> Iterator[Updates]:
        started = time.monotonic()
        address = permalink([Outcome(request.model) for request in batch.requests], batch.requests[0])
        yield {self.status: Meter.waiting(address), self._batch: batch, **self._several.begin(batch)}
        for number, request in enumerate(batch.requests, 1):
            meter = Meter()
            try:
                for item in job(request, started, rejoin=True):
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
            done = status(batch.summary(), permalink(batch.outcomes, batch.requests[0]))
        else:
            done = failed_status(f"None of the {len(batch.requests)} models could be read; the table says why.")
        yield {self.status: done, **self._several.end(batch), **self.busy(False)}

    def stopped(self, batch: Batch | None = None) -> Updates:
        """Return updates for the page after Stop: of several models, the finished ones remain."""
        if batch is None or not batch.outcomes:
            return {**super().stopped(), **self._several.hide()}
        said = status(f"Stopped. {batch.summary()}")
        return {self.status: said, **self._several.rows(batch, "not read: stopped"), **self.busy(False)}

    def files(self, batch: Batch | None) -> Updates:
        """Return updates that show the figures and downloads of the finished models after Stop."""
        try:
            return self._several.end(batch) if batch is not None and batch.outcomes else {self.status: gr.skip()}
        except Exception as error:
            return {self.status: failed_status(sentence(error))}

    def open(self, batch: Batch | None, request: gr.Request, event: gr.EventData) -> Updates:
        """Show the full result of the clicked table row below the table."""
        held = opened_report(batch, event)
        if held is None:
            return {self.status: gr.skip()}
        try:
            return self.result.show(held.report(client_of(request)), held)
        except Exception as error:
            return {self.status: failed_status(sentence(error))}


def _build_options() -> dict[str, Any]:
    return build_rows(DtypeRequest, ("quantize",), *READING)


PAGE = AnalysisPage(
    name="dtype",
    question="What precision was this model trained in?",
    about="Paste a Hub model id or address, or several: Mantissa reads a sample of the bytes (64 MB, a few seconds, whatever the size) and "
    "reports what they prove and what they suggest.",
    examples=EXAMPLES,
    fields=partial(build_model_fields, DtypeRequest, "Inspect", blocks=[_build_options], label=_LABEL),
    result=RESULT,
    gallery=gallery,
    runs=PassportRuns,
    check=requests,
)
